"""Surfaces of real lakes and of DAG runs are as their stored files say."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.dags.fake_spark import FakeSpark
from tests.lake_sandbox import LakeSandbox
from tests.surfaces import json_output, plans, tables, xcoms
from tests.surfaces.stored import check
from tests.tables.fixtures import sandbox as sandbox
from tests.tables.logs import Message, write_log
from tests.tables.nights import at
from tests.tables.planned import Jobs
from tests.tables.planned import jobs as jobs

# Two segments that supersede each other, with a tombstone, and an active one.
SEGMENTS = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    [Message("a", "2"), Message("b", None)],
    [Message("d", "1")],
]
POLICY = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture
def cluster(name: str) -> str:
    return name


@pytest.fixture
def topic(jobs: Jobs, cluster: str, tmp_path: Path) -> str:
    """A little log after its ingest and the marking of tombstones."""
    source = write_log(tmp_path / "log", "t", SEGMENTS, POLICY)
    now, from_log = ("--now", at(plans.NOW_MS).isoformat()), ("--source", str(source))
    ingest, mark = map(import_module, ("jobs.ingest_segments", "jobs.mark_tombstones"))
    assert jobs.run(ingest, *from_log, "--cluster", cluster, *now) == 0
    assert jobs.run(mark, "--topic", f"{cluster}.t", *now) == 0
    return f"{cluster}.t"


@pytest.mark.parametrize("name", ["ddl"])
def test_the_tables_are_as_stored(name: str, lake: LakeSandbox) -> None:
    check(name, tables.collect(lake))


@pytest.mark.parametrize("name", ["json_output"])
def test_documents_are_as_stored(
    name: str, sandbox: LakeSandbox, topic: str, tmp_path: Path
) -> None:
    sandbox.hold(topic)
    check(name, json_output.collect(topic, tmp_path))


@pytest.mark.parametrize("name", ["plans"])
def test_plans_are_as_stored(name: str, jobs: Jobs, topic: str) -> None:
    check(name, plans.collect(jobs, topic))


@pytest.mark.parametrize("name", ["xcom"])
def test_xcoms_are_as_stored(name: str, spark_submit: FakeSpark) -> None:
    check(name, xcoms.collect(spark_submit))
