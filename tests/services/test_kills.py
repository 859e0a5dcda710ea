"""Services that die in the middle of a night: retries alone end it as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode
from tests.jobs.submit import started
from tests.lake_sandbox import LakeSandbox
from tests.services.cells import (
    CLUSTER,
    FIRST_NIGHT,
    REQUEST,
    SAMPLE,
    SECOND_NIGHT,
    SETTINGS,
    TOPICS,
    CellSandbox,
    contents,
)
from tests.services.faulty_s3 import FaultyS3, Refusal, every
from tests.services.postgresql import PostgreSql
from tests.services.process import Server
from tests.services.rest_catalog import RestCatalog
from tests.services.s3_api import BUCKET, S3Api
from tests.services.spark_cluster import SparkCluster

TRIES = 4
AWAY_SECONDS = 3.0
# Seen in a job's output when it is in the middle of its work.
BEGUN = "INFO"
GONE = Refusal(503, "ServiceUnavailable")

Disturbance = Callable[[], None]

pytestmark = pytest.mark.services


def restarted(server: Server) -> Disturbance:
    """A server is killed, and is there again a little later."""

    def disturb() -> None:
        server.kill()
        time.sleep(AWAY_SECONDS)
        server.start()

    return disturb


def executor_killed(cluster: SparkCluster) -> Disturbance:
    """One executor of the first worker is killed; Spark starts another."""

    def disturb() -> None:
        worker = cluster.workers[0].pid
        found = subprocess.run(["pgrep", "-P", str(worker)], capture_output=True, text=True)
        for child in found.stdout.split():
            os.kill(int(child), signal.SIGKILL)

    return disturb


def store_away(proxy: FaultyS3) -> Disturbance:
    """The store answers nothing for longer than its clients try again."""

    def disturb() -> None:
        with proxy.having(every(1, GONE)):
            time.sleep(5 * AWAY_SECONDS)

    return disturb


def run_until_done(lake: LakeSandbox, job: str, *arguments: str, disturb: Disturbance) -> int:
    """A job as Airflow runs it, disturbed in its first try; how many tries it took."""
    for attempt in range(1, TRIES + 1):
        with started(lake, job, *arguments) as process:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if attempt == 1 and BEGUN in line and f" {job} " in line:
                    disturb()
                    said += process.stdout.readlines()
        if process.returncode == ExitCode.DONE:
            return attempt
        text = "".join(said)
        assert process.returncode == ExitCode.TRANSIENT, f"{job}: {process.returncode}\n{text}"
        assert "CorruptSegmentError" not in text
    raise AssertionError(f"{job} did not end in {TRIES} tries:\n{text}")


def run_disturbed_nights(
    lake: LakeSandbox, source: str, disturbances: dict[str, Disturbance]
) -> dict[str, int]:
    """The jobs of `run_nights`, each disturbed as said; the tries of each."""
    topics = [word for topic in TOPICS for word in ("--topic", f"{CLUSTER}.{topic}")]
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    tries: dict[str, int] = {}

    def run(job: str, now: str, *arguments: str) -> None:
        disturb = disturbances.get(job, lambda: None)
        tries[job] = run_until_done(lake, job, *arguments, "--now", now, disturb=disturb)

    run("ingest_segments", FIRST_NIGHT, "--source", source, "--cluster", CLUSTER, *settings)
    run("mark_tombstones", FIRST_NIGHT, *topics)
    for now in (FIRST_NIGHT, SECOND_NIGHT):
        for job in ("clean_log", "expire_segments"):
            run(job, now, *topics)
    run("delete_records", SECOND_NIGHT, "--request", json.dumps(REQUEST))
    run("expire_snapshots", SECOND_NIGHT, *topics)
    return tries


def test_a_catalog_a_worker_and_an_executor_die(
    postgresql: PostgreSql, spark_cluster: SparkCluster, tmp_path: Path, embedded: dict[str, Any]
) -> None:
    home = tmp_path / "home"
    postgresql.create("kills")
    settings = {**postgresql.settings("kills"), "warehouse": f"file://{home}/warehouse"}
    lake = CellSandbox(home, settings, spark_cluster.settings())
    catalog_dies = restarted(postgresql)
    disturbances = {
        "ingest_segments": executor_killed(spark_cluster),
        "mark_tombstones": catalog_dies,
        "clean_log": restarted(spark_cluster.workers[0]),
        "expire_segments": catalog_dies,
        "delete_records": catalog_dies,
        "expire_snapshots": catalog_dies,
    }
    run_disturbed_nights(lake, str(SAMPLE), disturbances)
    assert without_runs(contents(lake)) == without_runs(embedded)


def test_a_catalog_server_and_a_store_go_away(
    s3: S3Api, tmp_path: Path, embedded: dict[str, Any]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with FaultyS3(s3.endpoint) as proxy:
        store = {**s3.settings(), "s3.endpoint": proxy.endpoint}
        with RestCatalog(home, f"s3://{BUCKET}/kills", store) as rest:
            lake = CellSandbox(home, {**rest.settings(), **store})
            disturbances = {
                "ingest_segments": store_away(proxy),
                "mark_tombstones": restarted(rest),
                "clean_log": store_away(proxy),
                "expire_segments": restarted(rest),
                "delete_records": restarted(rest),
                "expire_snapshots": store_away(proxy),
            }
            run_disturbed_nights(lake, s3.upload(SAMPLE, "logs/kills"), disturbances)
            assert without_runs(contents(lake)) == without_runs(embedded)


def without_runs(found: dict[str, Any]) -> dict[str, Any]:
    """Without the attempts: here some failed."""
    return {name: value for name, value in found.items() if name != "runs"}
