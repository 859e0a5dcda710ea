"""Services that die in the middle of a night: retries alone end it as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import started
from tests.services.cells import SAMPLE, CellSandbox, contents, run_nights
from tests.services.faulty_s3 import FaultyS3, Refusal, every
from tests.services.postgresql import PostgreSql
from tests.services.process import Server
from tests.services.rest_catalog import RestCatalog
from tests.services.s3_api import BUCKET, S3Api
from tests.services.spark_cluster import SparkCluster
from tests.waiting import wait_until

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
        children = ["pgrep", "-P", str(cluster.workers[0].pid)]
        pids = wait_until(
            lambda: subprocess.run(children, capture_output=True).stdout.split(),
            "the worker to have an executor",
        )
        for child in pids:
            os.kill(int(child), signal.SIGKILL)

    return disturb


def store_away(proxy: FaultyS3) -> Disturbance:
    """The store answers nothing for longer than its clients try again."""

    def disturb() -> None:
        with proxy.having(every(1, GONE)):
            time.sleep(5 * AWAY_SECONDS)

    return disturb


def run_until_done(
    disturbances: Mapping[str, Disturbance], lake: LakeSandbox, job: str, *arguments: str
) -> None:
    """A job as Airflow runs it, tried again where that can help; disturbed in its first try."""
    output, is_disturbed = "", False
    for _ in range(TRIES):
        with started(lake, job, *arguments) as process:
            assert process.stdout is not None
            for line in process.stdout:
                output += line
                if not is_disturbed and BEGUN in line and f" {job} " in line:
                    disturbances[job]()
                    is_disturbed = True
        assert is_disturbed, f"{job} told nothing of its work:\n{output}"
        if process.returncode == ExitCode.DONE:
            return
        assert process.returncode == ExitCode.TRANSIENT, f"{job}: {process.returncode}\n{output}"
        assert "CorruptSegmentError" not in output
    raise AssertionError(f"{job} did not end in {TRIES} tries:\n{output}")


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
    run_nights(lake, str(SAMPLE), partial(run_until_done, disturbances))
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
            source = s3.upload(SAMPLE, "logs/kills")
            run_nights(lake, source, partial(run_until_done, disturbances))
            assert without_runs(contents(lake)) == without_runs(embedded)


def without_runs(tables: dict[str, Any]) -> dict[str, Any]:
    """Without the attempts: here some failed."""
    return {name: value for name, value in tables.items() if not name.startswith("runs of ")}
