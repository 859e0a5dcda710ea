"""The forms by which logs come in and go out."""

from __future__ import annotations

import pytest

from ebbtide.errors import (
    CorruptSegmentError,
    ForeignLogError,
    OversizedBatchError,
    RequestError,
    standing_for,
)
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import note, run_dag, states
from tests.lake_sandbox import LakeSandbox


@pytest.mark.long
def test_an_ingest_that_fails_is_named(spark_submit: FakeSpark) -> None:
    spark_submit.failures["ingest_segments", "log.found"] = [ForeignLogError("another log")]
    run = run_dag("ingest_segments")
    assert states(run) == {
        "ingest_segments": "failed",
        "publish_low_watermarks": "success",
        "report_run": "failed",
    }


@pytest.mark.long
def test_the_causes_of_two_partitions_are_one_whole_line_and_the_note(
    spark_submit: FakeSpark, caplog: pytest.LogCaptureFixture
) -> None:
    first = f"/log/{'x' * 500}/0.log: expected magic 2, found 9; copy the file again"
    second = "/log/found-1/0.log: expected at most 5 MiB, found 9 MiB; raise the setting"
    error = standing_for([CorruptSegmentError(first), OversizedBatchError(second)])
    spark_submit.failures["ingest_segments", "log.found"] = [error]
    run = run_dag("ingest_segments")
    failure = (
        "log.found failed in ingest_segments: "
        f"CorruptSegmentError: {first}; OversizedBatchError: {second}"
    )
    assert [text for text in caplog.messages if text.startswith("FAILED ")] == [f"FAILED {failure}"]
    assert note(run) == failure


@pytest.mark.long
def test_an_ingest_that_dies_before_any_topic_fails_the_run(spark_submit: FakeSpark) -> None:
    spark_submit.dies_in["ingest_segments"] = 3
    run = run_dag("ingest_segments")
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 3


def test_a_refused_target_is_not_tried_again(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    refusal = RequestError("expected a target that is empty, found a log")
    spark_submit.failures["export_segments", "log.a"] = [refusal]
    run = run_dag("export_segments", topic="log.a", target="/logs")
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1
