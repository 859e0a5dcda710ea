"""A lake of its own whose jobs are measured, each a spark-submit as a night has them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.scale.logs import FIRST_MS, topic_name
from benchmarks.scale.processes import Taken, measured
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.runner.submit import BIN

CLUSTER = "scale"
NIGHT = ("mark_tombstones", "clean_log", "expire_segments", "expire_snapshots")
TOPICS_PER_APPLICATION = 250  # as the DAGs have it
SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0.01",
    "kafka.retention.ms": "-1",
    "kafka.retention.max.eventtime.ms": str(365 * 86_400_000),
    "ebbtide.max.delete.ratio": "1",
}
NOW = "2026-12-01T00:00:00+00:00"


class ScaleLake:
    """An EBBTIDE_HOME with a log directory beside it."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"
        self.sandbox = LakeSandbox(directory / "home")
        self.sandbox.package()

    def ingest(self, topics: Sequence[str] = ()) -> Taken:
        """All that is new in the log directory, or in these topics of it."""
        settings = [option for pair in SETTINGS.items() for option in ("--set", "=".join(pair))]
        source = ("--source", str(self.log), "--cluster", CLUSTER)
        return self.job("ingest_segments", topics, *source, *settings)

    def job(
        self, job: str, topics: Sequence[str], *more: str, now: str = NOW, conf: Sequence[str] = ()
    ) -> Taken:
        """One job on these topics, with these properties of Spark."""
        options = [option for pair in conf for option in ("--conf", pair)]
        named = [option for topic in topics for option in ("--topic", topic)]
        return measured(
            [
                *(str(BIN / "spark-submit"), *options),
                *("--py-files", str(self.sandbox.home / "ebbtide.zip")),
                *(f"{ROOT}/jobs/{job}.py", *named, *more, "--now", now, "--run-id", "measured"),
            ],
            self._environment(),
            self._lake,
        )

    def script(self, module: str, *arguments: str) -> tuple[Taken, Mapping[str, object]]:
        """A module of this package in a Python of its own, and the JSON that it says last."""
        command = [sys.executable, "-m", module, *arguments]
        taken = measured(command, self._environment(), self._lake)
        return taken, json.loads(taken.said.splitlines()[-1])

    def files(self) -> int:
        """Files of the warehouse."""
        return sum(len(names) for _, _, names in os.walk(self._lake))

    @property
    def _lake(self) -> Path:
        return self.sandbox.home / "lake"

    def _environment(self) -> dict[str, str]:
        ours = {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{BIN}:{os.environ['PATH']}"}
        return {**os.environ, **self.sandbox.environment(), **ours, "PYTHONPATH": str(ROOT)}


def names(count: int) -> list[str]:
    """The topics of a lake, as jobs name them."""
    return [f"{CLUSTER}.{topic_name(number)}" for number in range(count)]


assert FIRST_MS < 1_796_000_000_000  # before NOW
