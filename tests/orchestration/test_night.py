import pytest

from ebbtide.iceberg.schema import create_topic
from ebbtide.lake.reader import LakeTopic
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import to_properties
from ebbtide.orchestration.night import (
    LowWatermark,
    grouped,
    low_watermarks_of_state,
    nothing_to_do,
)
from tests.lake_sandbox import LakeSandbox, state_of

NOW_MS = 1_000


def topic_of(config: dict[str, str], **state: object) -> LakeTopic:
    return LakeTopic("log.t", {**config, **to_properties(0, state_of(**state))})


COMPACT = {"kafka.cleanup.policy": "compact"}
DELETE = {"kafka.cleanup.policy": "delete"}


@pytest.mark.parametrize(
    ("job", "topic", "reason"),
    [
        pytest.param(
            "mark_tombstones",
            topic_of({}),
            "every record up to the log end offset is judged already",
            id="nothing unmarked",
        ),
        pytest.param(
            "mark_tombstones",
            topic_of({}, first_unmarked_offset=99),
            None,
            id="one record unmarked",
        ),
        pytest.param(
            "clean_log", topic_of(DELETE), "cleanup.policy has no compact", id="not compacted"
        ),
        pytest.param("clean_log", topic_of({}), "cleanup.policy has no compact", id="no policy"),
        pytest.param(
            "clean_log",
            topic_of({**COMPACT, "ebbtide.enabled": "false"}),
            "ebbtide.enabled is false",
            id="disabled",
        ),
        pytest.param(
            "clean_log",
            topic_of(COMPACT),
            "cleaned up to the log end offset, and no delete horizon is due",
            id="clean and nothing waits",
        ),
        pytest.param(
            "clean_log",
            topic_of(COMPACT, next_clean_ms=NOW_MS + 1),
            "cleaned up to the log end offset, and no delete horizon is due",
            id="horizon later than now",
        ),
        pytest.param(
            "clean_log", topic_of(COMPACT, next_clean_ms=NOW_MS), None, id="horizon is now"
        ),
        pytest.param(
            "clean_log", topic_of(COMPACT, cleaned_end_offset=99), None, id="one record arrived"
        ),
        pytest.param(
            "expire_segments", topic_of({}), "no retention limit is set", id="no limit at all"
        ),
        pytest.param(
            "expire_segments",
            topic_of({"kafka.retention.ms": "-1"}),
            "no retention limit is set",
            id="an unlimited limit",
        ),
        pytest.param(
            "expire_segments", topic_of({"kafka.retention.bytes": "1"}), None, id="a limit"
        ),
        pytest.param(
            "expire_segments",
            topic_of({}, log_start_offset=1),
            None,
            id="records below the log start may remain",
        ),
        pytest.param(
            "delete_records", topic_of(COMPACT), "cleanup.policy has no delete", id="compact only"
        ),
        pytest.param(
            "delete_records",
            topic_of(DELETE),
            "ebbtide.replicas names no other copy",
            id="no replica",
        ),
        pytest.param(
            "delete_records",
            topic_of({**DELETE, "ebbtide.replicas": "lake.copy"}),
            None,
            id="a replica",
        ),
        pytest.param(
            "clean_log", topic_of({**COMPACT, "ebbtide.undo": "{}"}), None, id="a killed undo"
        ),
        pytest.param("ingest_segments", topic_of({}), None, id="ingest always has work"),
        pytest.param("expire_snapshots", topic_of({}), None, id="so has expire_snapshots"),
    ],
)
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
    create_topic(lake.session, name, {**DELETE, **to_properties(0, state_of())})
    assert nothing_to_do("replicate_log", topic, NOW_MS) == "every replica holds all of it"
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


@pytest.mark.parametrize(
    ("size", "groups"),
    [(1, [["a"], ["b"], ["c"]]), (2, [["a", "b"], ["c"]]), (9, [["a", "b", "c"]])],
)
def test_grouped(size: int, groups: list[list[str]]) -> None:
    assert grouped(["a", "b", "c"], size) == groups


def test_no_topic_is_no_group() -> None:
    assert grouped([], 5) == []
