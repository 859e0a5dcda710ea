"""Keys are erased by a plan that names their records and never the keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.jobs.erase_keys import stage
from ebbtide.ledger.plans import Plan, PlanStep
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import KEYS
from jobs import erase_keys
from tests.jobs.erase_keys.closed_archive import ERASED_MS, batch, configure, records
from tests.tables.nights import HOUR_MS, ingest, mark
from tests.tables.partition_log import T0
from tests.tables.planned import Jobs

REASON = ("--requested-by", "ann", "--reason", "17", "--append")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The keys a, c and x, as a form hands them over."""
    monkeypatch.setenv(KEYS, "a\nc\nx")
    return monkeypatch


def plan(jobs: Jobs, name: TopicName, *more: str) -> Plan:
    return jobs.plan(erase_keys, ERASED_MS, "--topic", str(name), *REASON, *more)


def execute(jobs: Jobs, kept: Plan, approver: str = "bob") -> int:
    return jobs.run(erase_keys, "--plan", kept.plan_id, "--approved-by", approver)


@pytest.mark.long
def test_a_plan_names_the_records_and_no_key(
    spark: SparkSession, jobs: Jobs, name: TopicName, typed: pytest.MonkeyPatch
) -> None:
    mark(spark, str(name))
    before = records(spark, name)
    kept = plan(jobs, name)
    assert records(spark, name) == before
    assert kept.removes is not None
    held = {p: list(offsets) for p, offsets in kept.removes.items()}
    of_keys = [(p, o) for p, o, key, value in before if key in "ac" and value is not None]
    assert [(p, o) for p, offsets in held.items() for o in offsets] == of_keys
    assert kept.parameters["keys"] == 3
    assert kept.parameters["requested_by"] == "ann"
    stored = json.dumps([dict(kept.parameters), dict(kept.summary)])
    assert '"a"' not in stored
    hashes = [hashlib.sha256(key).digest() for key in (b"a", b"c", b"x")]
    digests = [*hashes, hashlib.sha256(b"".join(sorted(hashes))).digest()]
    assert not [digest for digest in digests if digest.hex() in stored]


def test_a_plan_is_executed_with_the_same_keys_given_again(
    spark: SparkSession, jobs: Jobs, name: TopicName, typed: pytest.MonkeyPatch
) -> None:
    kept = plan(jobs, name)
    typed.setenv(KEYS, "a\nb\nx")
    before = records(spark, name)
    assert execute(jobs, kept) == ExitCode.FAILED
    assert "A plan stores no keys: give the keys of the plan again" in jobs.last_run().error
    typed.setenv(KEYS, "x\nc\na")
    assert records(spark, name) == before
    assert execute(jobs, kept) == ExitCode.DONE
    assert jobs.kinds(kept)[-1] is PlanStep.EXECUTED
    assert [row[3] for row in records(spark, name) if row[2] == "a"][-1] is None


@pytest.mark.long
def test_a_plan_of_an_older_version_is_not_executed(
    spark: SparkSession, jobs: Jobs, name: TopicName, typed: pytest.MonkeyPatch
) -> None:
    with typed.context() as patch:
        patch.setattr(stage, "KEYS_HMAC", "keys_sha256")
        kept = plan(jobs, name)
    before = records(spark, name)
    assert execute(jobs, kept) == ExitCode.FAILED
    assert "found the plan of an older version. Nothing was erased" in jobs.last_run().error
    assert records(spark, name) == before


@pytest.mark.long
def test_a_record_that_came_since_stops_the_erasure(
    spark: SparkSession, jobs: Jobs, name: TopicName, source: Path, typed: pytest.MonkeyPatch
) -> None:
    kept = plan(jobs, name)
    path = source / "t-0" / f"{4:020}.log"
    path.write_bytes(path.read_bytes() + batch(6, ("a", "4")))
    configure(spark, name, {"ebbtide.source": f"segments:{source}"})
    ingest(spark, str(name), source, T0 + HOUR_MS)
    configure(spark, name, {"ebbtide.source": ""})
    assert execute(jobs, kept) == ExitCode.FAILED
    more = "found more: 1 offsets of partition 0 from 6 on. The tables or settings changed after"
    assert more in jobs.last_run().error
    assert records(spark, name)[-2][1:] == (6, "a", "4")
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXCEEDED]


@pytest.mark.long
def test_four_eyes_are_about_who_started_the_run_and_not_for_whom(
    spark: SparkSession, jobs: Jobs, name: TopicName, typed: pytest.MonkeyPatch
) -> None:
    configure(spark, name, {"ebbtide.plan.four.eyes": "true"})
    kept = plan(jobs, name, "--triggered-by", "eve")
    assert (kept.requested_by, kept.parameters["requested_by"]) == ("eve", "ann")
    assert execute(jobs, kept, "eve") == ExitCode.FAILED
    assert jobs.last_run().error_class == "PlanError"
    assert execute(jobs, kept) == ExitCode.DONE
