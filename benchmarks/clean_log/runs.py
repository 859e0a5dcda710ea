"""Runs of the contenders, each in a fresh process on freshly laid out data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.clean_log.contenders.kafka import run_kafka
from benchmarks.clean_log.contenders.names import KAFKA, table_of
from benchmarks.clean_log.data.home import ROOT, environment
from benchmarks.clean_log.data.prepared import CellData
from benchmarks.clean_log.report.kept import Run, now

MOST_SECONDS = 1800
IN_SPARK = "benchmarks.clean_log.contenders.in_spark"


class FailedRunError(Exception):
    """A contender that did not end well, or is fast because it did not do the work."""


def run_once(contender: str, data: CellData) -> Run:
    """Lay out the data, clean them, and check what is left."""
    data.lay_out(table_of(contender))
    date, load = now(), os.getloadavg()[0]
    said = run_kafka(data) if contender == KAFKA else _run_in_spark(contender, data)
    left = said.pop("survivors")
    if left != data.survivors._asdict():
        raise FailedRunError(f"expected {data.survivors} after {contender}, found {left}")
    return Run(contender=contender, date=date, load=load, **said)


def _run_in_spark(contender: str, data: CellData) -> dict[str, Any]:
    command = [sys.executable, "-m", IN_SPARK, contender, data.cell.name]
    messages = data.home / f"{contender}.stderr"
    with messages.open("w") as errors:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(data.home),
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=MOST_SECONDS,
        )
    if done.returncode != 0:
        last = messages.read_text().splitlines()[-1:]
        raise FailedRunError(f"exit code {done.returncode}, {last}; more in {messages}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
