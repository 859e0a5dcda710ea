"""The one-line errors of conf/ivy/resolve_jars.py, and that it does nothing twice."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "conf" / "ivy" / "resolve_jars.py"


def resolve(target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "spark", str(target)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def fake_java(home: Path, version: str) -> Path:
    """A Java home whose java only tells its version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "message"),
    [
        pytest.param("11", "expected Java 17, found 11", id="another version"),
        pytest.param("", "does not run", id="no version at all"),
    ],
)
def test_an_unfit_java_is_named(tmp_path: Path, version: str, message: str) -> None:
    done = resolve(tmp_path / "jars", JAVA_HOME=str(fake_java(tmp_path / "jdk", version)))
    assert done.returncode == 1
    assert message in done.stderr
    assert "install a Java 17 JDK" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        pytest.param({"JAVA_HOME": "/nowhere"}, "at JAVA_HOME=/nowhere", id="wrong JAVA_HOME"),
        pytest.param({"JAVA_HOME": "", "PATH": "/nowhere"}, "on PATH", id="no java on PATH"),
    ],
)
def test_a_missing_java_is_named(tmp_path: Path, environment: dict[str, str], where: str) -> None:
    done = resolve(tmp_path / "jars", **environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"resolve_jars: no java {where}: install")


def test_no_network_is_one_line_that_names_the_jars_and_the_proxy_setting(tmp_path: Path) -> None:
    nowhere = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1"
    done = resolve(tmp_path / "jars", JAVA_TOOL_OPTIONS=nowhere)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "org.apache.iceberg#iceberg-spark-runtime-4.1_2.13" in done.stderr
    assert "https.proxyHost" in done.stderr
    assert not (tmp_path / "jars").exists()


def test_jars_that_are_there_are_left_alone_and_a_stray_one_is_noticed(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    target = tmp_path / "jars"
    target.mkdir()
    (target / "a-1.jar").write_bytes(b"jar")
    digest = script["requirements_digest"]("spark")
    script["write_stamp"](target, digest)
    assert resolve(target).stdout == f"spark jars are in {target}\n"
    assert not script["is_resolved"](target, script["requirements_digest"]("kafka"))
    assert not script["is_resolved"](target, script["requirements_digest"]("connect"))
    shutil.copyfile(target / "a-1.jar", target / "a-0.jar")
    assert not script["is_resolved"](target, digest)
    assert json.loads((target / ".resolved.json").read_text())["jars"] == {"a-1.jar": 3}
