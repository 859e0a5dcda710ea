"""Archive the classes that a night loads, so that the next JVMs map them: `class_archive.py`.

It writes $EBBTIDE_HOME/classes.jsa and its stamp, and does nothing where the stamp fits. Spark
starts without an archive too, so that a failure here is one line and no error.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).resolve().parent
NAME = "classes.jsa"  # conf/spark-env.sh looks for it
# The lines of spark-defaults.conf that decide about the driver's JVM.
DRIVER = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.extraClassPath")


class ArchiveError(Exception):
    """One line that says why there is no archive."""


def main() -> int:
    """Make the archive where it is missing or stale; always 0."""
    home = Path(os.environ["EBBTIDE_HOME"])
    try:
        if make_archive(home):
            print(f"setup: archived Spark's classes in {home / NAME}")
    except (ArchiveError, OSError) as error:
        print(f"setup: no archive of Spark's classes, jobs start slower: {error}", file=sys.stderr)
    return 0


def make_archive(home: Path) -> bool:
    """Whether one had to be made."""
    archive, stamp = home / NAME, home / f"{NAME}.stamp"
    wanted = digest(home)
    if is_current(archive, stamp, wanted):
        return False
    stamp.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="training-") as temporary:
        with Console(stderr=True).status("archiving Spark's classes by a night of its own"):
            fresh = train(home, Path(temporary))
        line = f"{fresh.stat().st_size} {wanted}\n"
        fresh.replace(archive)
    fresh_stamp = stamp.with_suffix(".new")
    fresh_stamp.write_text(line)
    fresh_stamp.replace(stamp)
    return True


def is_current(archive: Path, stamp: Path, wanted: str) -> bool:
    """Whether the stamp names this archive's length and all that it was made with."""
    try:
        return stamp.read_text() == f"{archive.stat().st_size} {wanted}\n"
    except OSError:
        return False


def digest(home: Path) -> str:
    """Of all that decides whether a JVM takes the archive, and of what was archived."""
    found = hashlib.sha256()
    for fact in facts(home):
        found.update(fact.encode() + b"\0")
    return found.hexdigest()


def facts(home: Path) -> Iterator[str]:
    """The JVM, its flags, the jars as it compares them, and the training run."""
    yield java_version()
    for line in (HERE / "spark-defaults.conf").read_text().splitlines():
        if line.startswith(DRIVER):
            yield line
    for directory in (home / "jars", home / "extra-jars", spark_jars()):
        for jar in sorted(directory.resolve().glob("*.jar")):
            about = jar.stat()
            yield f"{jar} {about.st_size} {about.st_mtime_ns}"
    for script in ("spark-env.sh", "train_classes.py"):
        yield (HERE / script).read_text()


def java_version() -> str:
    """What the java that Spark will use says of itself, its build included."""
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    if said.returncode:
        raise ArchiveError(f"{java} does not run")
    return f"{shutil.which(java)}\n{said.stderr}"


def spark_jars() -> Path:
    """The jars of the installed PySpark."""
    return Path(sysconfig.get_path("purelib")) / "pyspark" / "jars"


def train(home: Path, temporary: Path) -> Path:
    """A night in a lake of its own, whose JVM archives its classes when it ends."""
    own, fresh = temporary / "home", temporary / NAME
    (own / "lake").mkdir(parents=True)
    for name in ("jars", "extra-jars"):
        (own / name).symlink_to(home / name)
    environment = {**os.environ, "EBBTIDE_HOME": str(own)}
    for template in ("spark-defaults.conf", "log4j2.properties"):
        command = [sys.executable, str(HERE / "render.py"), str(HERE / template), str(own / "conf")]
        subprocess.run(command, env=environment, check=True)
    shutil.copy(HERE / "spark-env.sh", own / "conf")
    environment |= {
        "SPARK_CONF_DIR": str(own / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "EBBTIDE_ARCHIVE_CLASSES_TO": str(fresh),
    }
    log = home / "logs" / "class-archive.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    submit = Path(sysconfig.get_path("scripts")) / "spark-submit"
    with log.open("w") as output:
        done = subprocess.run(
            [str(submit), str(HERE / "train_classes.py"), str(temporary / "log")],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode or not fresh.exists():
        raise ArchiveError(f"the training run ended with {done.returncode}; its output is in {log}")
    return fresh


if __name__ == "__main__":
    sys.exit(main())
