from dataclasses import replace

import pytest

from ebbtide.iceberg.schema import create_topic
from ebbtide.kafka.retention import expiry_basis
from ebbtide.lake.reader import LakeTopic
from ebbtide.orchestration.night import (
    LowWatermark,
    grouped,
    low_watermarks_of_state,
    nothing_to_do,
    retention_of,
)
from ebbtide.settings.config import parse_config
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import to_properties
from tests.lake_sandbox import LakeSandbox, state_of

NOW_MS = 1_000


def topic_of(config: dict[str, str], **state: object) -> LakeTopic:
    return LakeTopic("log.t", {**config, **to_properties(0, state_of(**state))})


COMPACT = {"kafka.cleanup.policy": "compact"}
DELETE = {"kafka.cleanup.policy": "delete"}
DISABLED = {**COMPACT, "ebbtide.enabled": "false"}
REPLICATED = {**DELETE, "ebbtide.replicas": "lake.copy"}
MARKED = "every record up to the log end offset was checked already"
NOT_COMPACTED, NO_LIMIT = "cleanup.policy has no compact", "no retention limit is set"
CLEAN = "no new record since the last cleaner round, and no delete horizon is due"
NO_COPY = "ebbtide.replicas names no replica"
CASES = {
    "nothing unmarked": ("mark_tombstones", topic_of({}), MARKED),
    "one record unmarked": ("mark_tombstones", topic_of({}, first_unmarked_offset=99), None),
    "not compacted": ("clean_log", topic_of(DELETE), NOT_COMPACTED),
    "no policy": ("clean_log", topic_of({}), NOT_COMPACTED),
    "disabled": ("clean_log", topic_of(DISABLED), "ebbtide.enabled is false"),
    "clean and nothing waits": ("clean_log", topic_of(COMPACT), CLEAN),
    "horizon later than now": ("clean_log", topic_of(COMPACT, next_clean_ms=NOW_MS + 1), CLEAN),
    "horizon is now": ("clean_log", topic_of(COMPACT, next_clean_ms=NOW_MS), None),
    "one record arrived": ("clean_log", topic_of(COMPACT, cleaned_end_offset=99), None),
    "a killed undo": ("clean_log", topic_of({**COMPACT, "ebbtide.undo": "{}"}), None),
    "no limit at all": ("expire_segments", topic_of({}), NO_LIMIT),
    "unlimited": ("expire_segments", topic_of({"kafka.retention.ms": "-1"}), NO_LIMIT),
    "a limit": ("expire_segments", topic_of({"kafka.retention.bytes": "1"}), None),
    "records below the start": ("expire_segments", topic_of({}, log_start_offset=1), None),
    "compact only": ("delete_records", topic_of(COMPACT), "cleanup.policy has no delete"),
    "no replica": ("delete_records", topic_of(DELETE), NO_COPY),
    "a replica": ("delete_records", topic_of(REPLICATED), None),
    "ingest always has work": ("ingest_segments", topic_of({}), None),
    "so has expire_snapshots": ("expire_snapshots", topic_of({}), None),
}


@pytest.mark.parametrize(("job", "topic", "reason"), CASES.values(), ids=CASES)
def test_nothing_to_do(job: str, topic: LakeTopic, reason: str | None) -> None:
    assert nothing_to_do(job, topic, NOW_MS) == reason


def test_a_topic_without_table_replicas_is_not_replicated() -> None:
    reason = "ebbtide.replicas names no table"
    assert nothing_to_do("replicate_log", topic_of(DELETE), NOW_MS) == reason
    live = topic_of({**DELETE, "ebbtide.replicas": "kafka:main"})
    assert nothing_to_do("replicate_log", live, NOW_MS) == reason


def test_a_replica_that_holds_everything_starts_no_spark(lake: LakeSandbox) -> None:
    """Read through pyiceberg, from another catalog; what it cannot read may have work."""
    lake.add_catalog("other")
    topic = topic_of({**DELETE, "ebbtide.replicas": "other.copy"})
    assert nothing_to_do("replicate_log", topic, NOW_MS) is None
    assert low_watermarks_of_state(topic)[0]["low_watermark"] == -1
    name = TopicName("copy", "t", "other")
    named = {**DELETE, "ebbtide.replica.primary": "log.t"}
    create_topic(lake.session, name, {**named, **to_properties(0, state_of())})
    assert nothing_to_do("replicate_log", topic, NOW_MS) == "every replica is up to date"
    assert low_watermarks_of_state(topic)[0]["low_watermark"] == 0
    for more in ({"log_end_offset": 101}, {"log_start_offset": 3}):
        assert nothing_to_do("replicate_log", _with(topic, more), NOW_MS) is None
    # The primary has moved and the replica has not: its start is the least.
    assert low_watermarks_of_state(_with(topic, {"log_start_offset": 3}))[0] == LowWatermark(
        topic="log.t", partition=0, log_start_offset=3, low_watermark=0
    )


def _with(topic: LakeTopic, state: dict[str, int]) -> LakeTopic:
    return LakeTopic(topic.name, {**topic.properties, **to_properties(0, state_of(**state))})


def test_one_partition_with_work_is_work() -> None:
    clean, dirty = to_properties(0, state_of()), to_properties(1, state_of(cleaned_end_offset=0))
    assert nothing_to_do("clean_log", LakeTopic("log.t", {**COMPACT, **clean, **dirty}), 0) is None


def test_a_stage_without_work_answers_with_the_log_start() -> None:
    answers = low_watermarks_of_state(topic_of({}, log_start_offset=7))
    assert answers == [
        LowWatermark(topic="log.t", partition=0, log_start_offset=7, low_watermark=7)
    ]


def test_grouped() -> None:
    assert grouped(["a", "b", "c"], 1) == [["a"], ["b"], ["c"]]
    assert grouped(["a", "b", "c"], 2) == [["a", "b"], ["c"]]
    assert grouped(["a", "b", "c"], 9) == [["a", "b", "c"]]
    assert grouped([], 5) == []


def test_an_asset_event_tells_the_policy_and_the_first_dates_to_come() -> None:
    properties = {"kafka.cleanup.policy": "delete,compact", "kafka.retention.ms": "1"}
    due = state_of(next_clean_ms=1_767_225_600_000, horizon_ms=1_767_225_600_000)
    later = replace(due, next_clean_ms=1_767_312_000_000, horizon_ms=1_767_312_000_000)
    config = parse_config(properties)
    expires = replace(state_of(), next_expiry_ms=1_767_139_200_000)
    expires = replace(expires, expiry_basis=expiry_basis(expires, config))
    outdated = replace(expires, next_expiry_ms=1, expiry_basis=0)
    states = (due, later, expires, outdated)
    for partition, state in enumerate(states):
        properties |= to_properties(partition, state)
    assert retention_of(LakeTopic("log.a", properties)) == {
        "cleanup_policy": ["compact", "delete"],
        "next_horizon": "2026-01-01T00:00:00+00:00",
        "next_expiry": "2025-12-31T00:00:00+00:00",
    }
    assert retention_of(LakeTopic("log.b", {})) == {
        "cleanup_policy": None,
        "next_horizon": None,
        "next_expiry": None,
    }
