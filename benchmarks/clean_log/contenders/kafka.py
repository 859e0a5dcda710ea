"""One run of Kafka's Cleaner in a JVM of its own, one thread, with a broker's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.clean_log.contenders.java import java_tool
from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.clean_log.data.cells import NOW_MS, SEGMENT_BYTES
from benchmarks.clean_log.data.home import BENCH, EBBTIDE_HOME, ROOT
from benchmarks.clean_log.data.log_files import PARTITION
from benchmarks.clean_log.data.prepared import CellData

JARS = EBBTIDE_HOME / "kafka-jars"
SOURCE = Path(__file__).parent / "CleanerBench.java"
# Heap and collector of kafka-server-start.sh and kafka-run-class.sh.
JVM_OPTIONS = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


def run_kafka(data: CellData) -> dict[str, Any]:
    """As a run in Spark; the Cleaner itself waits until what it wrote is on the disk."""
    classpath = f"{compiled(SOURCE)}{os.pathsep}{JARS}/*"
    log = data.home / "log" / PARTITION
    arguments = [str(log), str(data.cell.clean_records), str(NOW_MS), str(SEGMENT_BYTES)]
    command = [java_tool("java"), *JVM_OPTIONS, "-cp", classpath, "CleanerBench", *arguments]
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as java:
        assert java.stdin is not None
        assert java.stdout is not None
        _line(java.stdout)  # loaded
        start_s = time.perf_counter() - started
        os.sync()
        with Meter(java.pid) as meter:
            _go(java.stdin)
            said = json.loads(_line(java.stdout))
        _go(java.stdin)
        survivors = json.loads(_line(java.stdout))
    return {
        "start_s": start_s,
        **meter.usage._asdict(),
        "flush_s": 0.0,
        "steps": {"map": said["index_seconds"], "clean": said["seconds"] - said["index_seconds"]},
        "survivors": survivors,
    }


def _line(output: IO[str]) -> str:
    line = output.readline()
    if not line:
        raise RuntimeError("expected a line from CleanerBench, found its end; see above")
    return line


def _go(commands: IO[str]) -> None:
    commands.write("\n")
    commands.flush()


def compiled(source: Path) -> Path:
    """The directory of the source's class, which uses Kafka's own."""
    classes = BENCH / "classes"
    compiled = classes / f"{source.stem}.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        resolve = ["conf/ivy/resolve_jars.py", "kafka", str(JARS)]
        subprocess.run([sys.executable, *resolve], cwd=ROOT, check=True)
        command = [java_tool("javac"), "-d", str(classes), "-cp", f"{JARS}/*", str(source)]
        subprocess.run(command, check=True)
    return classes
