"""The archive of Spark's classes: every start maps it, none needs it, and changes make it anew."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.lake_sandbox import EBBTIDE_HOME, ROOT, LakeSandbox

BIN = Path(sys.executable).parent
READ_A_TABLE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql("CREATE TABLE lake.log.t (a INT) USING iceberg")
assert spark.table("lake.log.t").where("a > 1").groupBy("a").count().collect() == []
"""


@pytest.fixture
def lake(tmp_path: Path) -> LakeSandbox:
    return LakeSandbox(tmp_path / "home")


def submit(
    lake: LakeSandbox, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "spark-submit"), *arguments],
        env={**os.environ, **lake.environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_a_submitted_job_takes_its_classes_from_the_archive(
    lake: LakeSandbox, tmp_path: Path
) -> None:
    job, log = tmp_path / "job.py", tmp_path / "classes.txt"
    job.write_text(READ_A_TABLE)
    done = submit(lake, str(job), SPARK_SUBMIT_OPTS=f"-Xlog:class+load:file={log}")
    assert done.returncode == 0, done.stderr
    loaded = log.read_text().splitlines()
    mapped = {line.split()[1] for line in loaded if line.endswith("shared objects file (top)")}
    ours = [line for line in loaded if re.search(r" org\.apache\.(spark|iceberg)\.", line)]
    assert "org.apache.iceberg.spark.source.SparkTable" in mapped
    assert len(mapped) > 10_000
    # What a lambda compiles to is loaded as before.
    assert sum("source: file:" in line or "source: jar:" in line for line in ours) < 200


def test_the_session_of_the_tests_takes_them_too(lake: LakeSandbox) -> None:
    java = lake.session.sparkContext._jvm.java.lang.management  # type: ignore[union-attr]
    arguments = java.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert any(f.startswith("-XX:SharedArchiveFile=") for f in arguments)


def replace(lake: LakeSandbox, archive: bytes) -> None:
    (lake.home / "classes.jsa").unlink()
    (lake.home / "classes.jsa").write_bytes(archive)


def remove(lake: LakeSandbox) -> None:
    (lake.home / "classes.jsa").unlink()


def remove_stamp(lake: LakeSandbox) -> None:
    (lake.home / "classes.jsa.stamp").unlink()


def cut_short(lake: LakeSandbox) -> None:
    replace(lake, (EBBTIDE_HOME / "classes.jsa").read_bytes()[: 100 * 1024 * 1024])


def fill_with_nonsense(lake: LakeSandbox) -> None:
    replace(lake, b"no archive")


def change_the_class_path(lake: LakeSandbox) -> None:
    jar = shutil.copy(next(EBBTIDE_HOME.glob("jars/commons-pool2-*.jar")), lake.home / "new.jar")
    defaults = lake.home / "conf" / "spark-defaults.conf"
    text = defaults.read_text()
    key = "spark.driver.extraClassPath"
    defaults.write_text(re.sub(rf"^{key}\s+", f"{key} {jar}:", text, flags=re.MULTILINE))


@pytest.mark.long(but="no archive")
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(remove, id="no archive"),
        pytest.param(remove_stamp, id="one whose making did not end"),
        pytest.param(cut_short, id="one cut short, of which a JVM dies"),
        pytest.param(fill_with_nonsense, id="something else by its name"),
        pytest.param(change_the_class_path, id="one of other jars"),
    ],
)
def test_without_a_fit_archive_spark_starts_and_says_so_in_one_line(
    lake: LakeSandbox, spoil: Callable[[LakeSandbox], None]
) -> None:
    spoil(lake)
    done = submit(lake, "--version")
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "archive" in line]
    assert len(warnings) == 1, done.stderr
    assert str(lake.home / "classes.jsa") in warnings[0]
    assert done.stdout == ""


def test_a_conf_that_is_named_with_a_slash_is_the_same(lake: LakeSandbox) -> None:
    done = submit(lake, "--version", SPARK_CONF_DIR=f"{lake.home}/conf/")
    assert done.returncode == 0
    assert "archive" not in done.stderr


@pytest.mark.long
def test_a_callers_own_properties_file_is_used(lake: LakeSandbox, tmp_path: Path) -> None:
    properties_file = tmp_path / "own.conf"
    properties_file.write_text("spark.driver.memory 333m\n")
    done = submit(lake, "--verbose", "--version", "--properties-file", str(properties_file))
    assert str(lake.home) not in re.findall(r"Using properties file: (.*)", done.stderr)[0]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("class_archive", ROOT / "conf/class_archive.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def home(tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of two jars, with an archive and a stamp that fits."""
    for name in ("jars/a.jar", "spark/b.jar", "conf/spark-env.sh", "conf/train_classes.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    (tmp_path / "extra-jars").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("spark.driver.memory 2g\nother 1\n")
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path))
    monkeypatch.setattr(script, "HERE", tmp_path / "conf")
    monkeypatch.setattr(script, "spark_jars", lambda: tmp_path / "spark")
    monkeypatch.setattr(script, "java_version", lambda: "17.0.15+6")
    (tmp_path / "classes.jsa").write_text("archive")
    (tmp_path / "classes.jsa.stamp").write_text(f"7 {script.digest(tmp_path)}\n")
    return tmp_path


def is_made_anew(script: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    def train(_: Path, temporary: Path) -> Path:
        fresh = temporary / "classes.jsa"
        fresh.write_text("new archive")
        return fresh

    monkeypatch.setattr(script, "train", train)
    assert script.main() == 0
    made = (home / "classes.jsa").read_text() == "new archive"
    assert script.make_archive(home) is False
    return made


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("jars/a.jar", "another jar", id="a jar of ours"),
        pytest.param("jars/c.jar", "one more", id="a jar more"),
        pytest.param("extra-jars/d.jar", "one more", id="a jar of the user's"),
        pytest.param("spark/b.jar", "another jar", id="a jar of Spark"),
        pytest.param("conf/spark-defaults.conf", "spark.driver.memory 3g\n", id="a driver's flag"),
        pytest.param("conf/spark-env.sh", "other flags", id="the flags in spark-env.sh"),
        pytest.param("conf/train_classes.py", "another night", id="the training run"),
        pytest.param("classes.jsa", "cut", id="the archive itself"),
    ],
)
def test_what_changes_the_archive_has_it_made_anew(
    script: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    (home / file).write_text(text)
    assert is_made_anew(script, home, monkeypatch)


def test_another_jvm_has_it_made_anew(
    script: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "java_version", lambda: "17.0.16+8")
    assert is_made_anew(script, home, monkeypatch)


def test_a_setting_that_no_jvm_sees_does_not(
    script: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "conf/spark-defaults.conf").write_text("spark.driver.memory 2g\nother 2\n")
    assert not is_made_anew(script, home, monkeypatch)


def test_a_training_run_that_fails_is_one_line_and_no_error(
    script: ModuleType,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(*_: Path) -> Path:
        raise script.ArchiveError("the training run ended with 1")

    monkeypatch.setattr(script, "train", train)
    (home / "jars/a.jar").write_text("another jar")
    assert script.main() == 0
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == [
        "setup: no archive of Spark's classes, jobs start slower: the training run ended with 1"
    ]
