"""Plans as an operator reads them."""

from ebbtide.runner.plan_text import render_plan
from ebbtide.runner.runs_table import JobOutcome


def test_a_plan_of_settings_shows_changes_and_what_goes_by_them() -> None:
    offsets = {"log_start_offset": 0, "low_watermark": 0, "log_end_offset": 900}
    cleaned = {**offsets, "picked": False, "reason": "cleanup.policy has no compact"}
    expired = {
        **offsets,
        "log_start_offset": 300,
        "segments_expired": 2,
        "records_in_segments": 273,
        "bytes_removed": 12_345,
        "newest_record_ms": 1_790_000_000_000,
        "by_rule": {"size": 0, "time": 2},
    }
    outcome = JobOutcome(
        partitions={
            0: {**offsets, "next_run": {"clean_log": cleaned, "expire_segments": expired}},
            1: {**offsets, "next_run": {"clean_log": cleaned, "expire_segments": expired}},
        },
        topic={
            "changes": {"kafka.retention.ms": [None, "5"], "kafka.segment.ms": ["7", "7"]},
            "next_run": {"plan": "0123456789ab", "delete_ratio": 0.25},
            "seconds": 3.0,
        },
    )
    plan = render_plan("configure_topic", "log.a", outcome)
    lines = [" ".join(line.split()) for line in plan.splitlines()]
    assert lines[:3] == [
        "configure_topic log.a: plan only, nothing was changed",
        "kafka.retention.ms: not set -> 5",
        "kafka.segment.ms: already 7",
    ]
    assert "expire_segments in the next nightly run:" in lines
    assert "0 300 0 900 2 273 12.3 kB 2026-09-21 14:13 time 2" in lines
    assert "partition 0, 1: cleanup.policy has no compact" in lines
    assert lines[-2:] == ["plan: 0123456789ab", "delete ratio: 0.25"]
    assert "{" not in plan


def test_a_plan_of_a_job_of_its_own_is_one_table() -> None:
    numbers = {"log_start_offset": 0, "records_before": 1_002, "records_after": 273, "keys": 3}
    plan = render_plan(
        "erase_keys", "log.a", JobOutcome(partitions={0: numbers}, topic={"method": "log"})
    )
    lines = [" ".join(line.split()) for line in plan.splitlines()]
    assert "0 0 1,002 273 3" in lines
    assert lines[-1] == "method: log"


def test_a_plan_of_many_partitions_says_how_many_more_there_are() -> None:
    outcome = JobOutcome(partitions={p: {"log_start_offset": p} for p in range(250)})
    assert "and 50 more partitions" in render_plan("clean_log", "log.a", outcome).splitlines()


def test_a_plan_has_no_column_of_an_error_that_no_partition_has() -> None:
    none, unknown = (
        {"log_start_offset": 5, "error_code": code, "error_name": name}
        for code, name in ((0, "NONE"), (3, "UNKNOWN_TOPIC_OR_PARTITION"))
    )
    plan = render_plan("delete_records", "log.a", JobOutcome(partitions={0: none, 1: none}))
    assert "NONE" not in plan
    assert "error" not in plan
    plan = render_plan("delete_records", "log.a", JobOutcome(partitions={0: none, 1: unknown}))
    lines = [" ".join(line.split()) for line in plan.splitlines()]
    assert lines[-2:] == ["0 5 -", "1 5 UNKNOWN_TOPIC_OR_PARTITION"]
