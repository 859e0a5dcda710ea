"""Checks of this machine: environment, Java, PySpark, jars, the package and the class archive."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ebbtide.commands.checks.check import Checks, ProblemError, by_setup
from ebbtide.lake.catalog_settings import defaults_path, read_defaults
from ebbtide.orchestration.driver.installation import paths

CHECKS = Checks()
JAVA = "17"
INSTALL = 'python -m pip install "$EBBTIDE_ROOT"'
FETCH = 'python "$EBBTIDE_ROOT/conf/ivy/resolve_jars.py" spark "$EBBTIDE_HOME/jars"'
PACK = 'python "$EBBTIDE_ROOT/conf/package.py" "$EBBTIDE_HOME/ebbtide.zip"'
RENDER = (
    'python "$EBBTIDE_ROOT/conf/render.py" "$EBBTIDE_ROOT/conf/spark-defaults.conf" '
    '"$EBBTIDE_HOME/conf"'
)
ARCHIVE = 'python "$EBBTIDE_ROOT/conf/class_archive.py"'


@CHECKS.add(
    "environment",
    "EBBTIDE_ROOT, EBBTIDE_HOME and SPARK_CONF_DIR",
    "run `make setup`, or in an Airflow of your own set these variables and take the steps "
    "of docs/deploy.md",
)
def _environment() -> str:
    where, defaults = paths(), defaults_path()
    for folder in (where.jobs, where.home):
        if not folder.is_dir():
            raise ProblemError(f"{folder} is no directory")
    read_defaults(defaults)
    return f"{where.home}, {defaults}"


@CHECKS.add("java", f"Java {JAVA}", f"install a JDK or JRE {JAVA}, or point JAVA_HOME to one")
def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProblemError(f"{java} does not run: {error.strerror}") from None
    specified = re.search(r"java\.specification\.version = (\S+)", done.stderr)
    if specified is None:
        raise ProblemError(f"{java} does not run, exit code {done.returncode}")
    if specified[1] != JAVA:
        raise ProblemError(f"Java {specified[1]} ({java})")
    return f"Java {specified[1]} ({java})"


@CHECKS.add("pyspark", "pyspark and pyspark-client of one version", by_setup(INSTALL))
def _pyspark() -> str:
    try:
        server, client = version("pyspark"), version("pyspark-client")
    except PackageNotFoundError as error:
        raise ProblemError(f"no package {error.name}") from None
    if server != client:
        raise ProblemError(f"pyspark {server} and pyspark-client {client}, in one directory")
    return server


@CHECKS.add("jars", "every jar of spark.jars", by_setup(FETCH, RENDER))
def _jars() -> str:
    listed = read_defaults(defaults_path()).get("spark.jars", "")
    jars = [jar for jar in listed.split(",") if jar]
    missing = [jar for jar in jars if not Path(jar.removeprefix("file://")).is_file()]
    if missing or not jars:
        raise ProblemError(f"{len(missing)} of {len(jars)} missing: {', '.join(missing[:3])}")
    return f"{len(jars)} jars"


@CHECKS.add("package", "ebbtide.zip as new as the sources", by_setup(PACK))
def _package() -> str:
    zipped, sources = paths().package_zip, paths().root / "src" / "ebbtide"
    if not zipped.is_file():
        raise ProblemError(f"no {zipped}")
    written = zipped.stat().st_mtime
    newer = [file.name for file in sources.rglob("*.py") if file.stat().st_mtime > written]
    if newer:
        raise ProblemError(f"{len(newer)} files are newer than it, such as {newer[0]}")
    return str(zipped)


@CHECKS.add(
    "class archive",
    "an archive as long as it was written",
    f"{by_setup(ARCHIVE)}; without it jobs start some seconds later",
    is_needed=False,
)
def _archive() -> str:
    archive = paths().home / "classes.jsa"
    try:
        written = archive.with_name("classes.jsa.stamp").read_text().split()[0]
        size_bytes = archive.stat().st_size
    except (IndexError, OSError):
        raise ProblemError(f"no {archive} with its stamp") from None
    if str(size_bytes) != written:
        raise ProblemError(f"{size_bytes} bytes, where {written} were written")
    return f"{size_bytes:,} bytes"
