"""Put the jars of one configuration into a directory, with the Ivy inside pyspark.

Usage: resolve_jars.py spark|kafka|rest|connect|refused|s3proxy TARGET_DIR. The first three are in
ivy.xml, each other one in a file of its own name. Nothing is fetched that is there already.
Ivy's cache and log lie beside the target, in `ivy/`.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).resolve().parent
SETTINGS = HERE / "ivysettings.xml"
CONFIGURATIONS = {
    **dict.fromkeys(("spark", "kafka", "rest"), HERE / "ivy.xml"),
    **{name: HERE / f"{name}.xml" for name in ("connect", "refused", "s3proxy")},
}
JAVA_VERSION = "17"
STAMP = ".resolved.json"


class ResolveError(Exception):
    """One line that says what is missing and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Resolve and say so; 1 with one line on stderr where that is not possible."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("conf", choices=list(CONFIGURATIONS))
    parser.add_argument("target", type=Path)
    args = parser.parse_args(argv)
    try:
        print(resolve_jars(args.conf, args.target.absolute()))
    except ResolveError as error:
        print(f"resolve_jars: {error}", file=sys.stderr)
        return 1
    return 0


def resolve_jars(conf: str, target: Path) -> str:
    """Make `target` hold exactly the jars of `conf`; one line about what was done.

    Java is looked at even when nothing is to be done: Spark needs it next.
    """
    java = checked_java()
    work = target.parent / "ivy"
    work.mkdir(parents=True, exist_ok=True)
    with only_one(work / f"{conf}.lock"):
        digest = requirements_digest(conf)
        if is_resolved(target, digest):
            return f"{conf} jars are in {target}"
        started = time.monotonic()
        print(f"fetching the {conf} jars from Maven Central ...", flush=True)
        fresh = work / f"{conf}-retrieved"
        shutil.rmtree(fresh, ignore_errors=True)
        with Console(stderr=True).status("fetching"):  # on a terminal alone
            retrieve(java, conf, fresh)
        jars = write_stamp(fresh, digest)
        shutil.rmtree(target, ignore_errors=True)
        fresh.replace(target)
        megabytes = sum(jars.values()) / 1e6
        seconds = time.monotonic() - started
        return f"{len(jars)} {conf} jars, {megabytes:.0f} MB, in {target} ({seconds:.0f} s)"


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Wait until no other process resolves the same configuration here."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def requirements_digest(conf: str) -> str:
    """What decides the jars: the configuration's name, its modules and Ivy's settings."""
    modules = CONFIGURATIONS[conf].read_bytes()
    return hashlib.sha256(conf.encode() + modules + SETTINGS.read_bytes()).hexdigest()


def is_resolved(target: Path, digest: str) -> bool:
    """Whether the stamp fits and every jar it names is there with its size, and no other."""
    try:
        stamp = json.loads((target / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == {"digest": digest, "jars": jar_sizes(target)})


def write_stamp(target: Path, digest: str) -> dict[str, int]:
    """Record what `target` holds; bytes of each jar, by name."""
    jars = jar_sizes(target)
    (target / STAMP).write_text(json.dumps({"digest": digest, "jars": jars}, indent=1) + "\n")
    return jars


def jar_sizes(target: Path) -> dict[str, int]:
    """Bytes of each jar in `target`, by name."""
    return {jar.name: jar.stat().st_size for jar in sorted(target.glob("*.jar"))}


def retrieve(java: str, conf: str, fresh: Path) -> None:
    """Run Ivy; its output goes to a log, and a failure names what could not be had."""
    work = fresh.parent
    log = work / f"{conf}.log"
    command = [
        java,
        f"-Debbtide.ivy.cache={work / 'cache'}",
        "-cp",
        str(ivy_jar()),
        "org.apache.ivy.Main",
        *("-settings", str(SETTINGS)),
        *("-ivy", str(CONFIGURATIONS[conf])),
        *("-confs", conf),
        *("-retrieve", str(fresh / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    with log.open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    if status != 0 or not jar_sizes(fresh):
        raise ResolveError(describe_failure(log))


def describe_failure(log: Path) -> str:
    """The modules Ivy could not have, in one line."""
    text = log.read_text(errors="replace")
    missing = list(
        dict.fromkeys(re.findall(r"([\w.\-]+#[\w.\-]+;[\w.\-]+)(?:![\w.\-]+)?: not found", text))
    )
    failed = sorted(set(re.findall(r"\[FAILED\s*\] (\S+?)!", text)))
    names = ", ".join((missing + failed)[:3]) or "the jars"
    return (
        f"could not fetch {names} from Maven Central: check the network; behind "
        "a proxy set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'. "
        f"Ivy's output is in {log}"
    )


def checked_java() -> str:
    """The java that Spark will use as well: of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    advice = f"install a Java {JAVA_VERSION} JDK and put it on PATH or set JAVA_HOME to it"
    try:
        probe = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True
        )
    except OSError:
        where = f"at JAVA_HOME={home}" if home else "on PATH"
        raise ResolveError(f"no java {where}: {advice}") from None
    found = re.search(r"java\.specification\.version = (\S+)", probe.stderr)
    if found is None:
        raise ResolveError(f"{java} does not run (exit status {probe.returncode}): {advice}")
    if found[1] != JAVA_VERSION:
        raise ResolveError(f"expected Java {JAVA_VERSION}, found {found[1]} ({java}): {advice}")
    return java


def ivy_jar() -> Path:
    """The Ivy that Spark ships with."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    jars = [jar for place in places or () for jar in Path(place, "jars").glob("ivy-*.jar")]
    if not jars:
        raise ResolveError(
            f"no Ivy found: pyspark is not installed for {sys.executable}; "
            "run this with the project's .venv/bin/python after installing requirements.txt"
        )
    return jars[0]


if __name__ == "__main__":
    sys.exit(main())
