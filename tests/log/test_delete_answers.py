from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.kafka.low_watermarks import (
    HIGH_WATERMARK,
    ErrorCode,
    PartitionAnswer,
    answer,
    answer_partition,
    refused,
    topic_error,
    way_out,
)
from ebbtide.settings.config import TopicConfig
from tests.lake_sandbox import ROOT, state_of

DOCUMENTATION = (ROOT / "docs" / "delete_records.md").read_text()
OUT_OF_RANGE = PartitionAnswer(5, -1, ErrorCode.OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("offset", "answered"),
    [
        pytest.param(7, PartitionAnswer(7, 7), id="the log start offset moves to it"),
        pytest.param(10, PartitionAnswer(10, 10), id="up to the high watermark"),
        pytest.param(11, OUT_OF_RANGE, id="not above it"),
        pytest.param(-1, PartitionAnswer(10, 10), id="-1 is the high watermark"),
        pytest.param(-2, OUT_OF_RANGE, id="nothing else below 0"),
        pytest.param(5, PartitionAnswer(5, 5), id="the log start offset changes nothing"),
        pytest.param(0, PartitionAnswer(5, 5), id="nor does one below it: never backwards"),
    ],
)
def test_a_log_from_5_to_10(offset: int, answered: PartitionAnswer) -> None:
    assert answer(offset, log_start_offset=5, high_watermark=10) == answered


@given(
    requests=st.lists(st.integers(-3, 12), max_size=6),
    high_watermark=st.integers(0, 10),
)
def test_requests_one_after_another_end_at_the_largest_that_is_valid(
    requests: list[int], high_watermark: int
) -> None:
    start = 0
    for offset in requests:
        start = answer(
            offset, log_start_offset=start, high_watermark=high_watermark
        ).log_start_offset
    asked = [high_watermark if offset == HIGH_WATERMARK else offset for offset in requests]
    assert start == max([0, *(offset for offset in asked if offset <= high_watermark)])


@pytest.mark.parametrize(
    ("topic", "policy", "error"),
    [
        pytest.param("t", None, ErrorCode.NONE, id="no policy"),
        pytest.param("t", "", ErrorCode.NONE, id="an empty policy, since Kafka 4.2"),
        pytest.param("t", "delete", ErrorCode.NONE, id="delete"),
        pytest.param("t", "compact delete", ErrorCode.NONE, id="compact and delete"),
        pytest.param("t", "compact", ErrorCode.POLICY_VIOLATION, id="compact alone"),
        pytest.param(
            "__consumer_offsets", "delete", ErrorCode.INVALID_TOPIC_EXCEPTION, id="consumer offsets"
        ),
        pytest.param(
            "__transaction_state", None, ErrorCode.INVALID_TOPIC_EXCEPTION, id="transaction state"
        ),
        pytest.param(
            "__share_group_state",
            "compact",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            id="an internal topic before its policy",
        ),
    ],
)
def test_which_topics_may_be_truncated(topic: str, policy: str | None, error: ErrorCode) -> None:
    parts = None if policy is None else frozenset(policy.split())
    assert topic_error(topic, TopicConfig(cleanup_policy=parts)) == error


def test_a_refusal_changes_nothing() -> None:
    assert refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == PartitionAnswer(-1, -1, ErrorCode(3))


def test_the_codes_are_kafkas() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {
        "UNKNOWN_SERVER_ERROR": -1,
        "NONE": 0,
        "OFFSET_OUT_OF_RANGE": 1,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "LEADER_NOT_AVAILABLE": 5,
        "NOT_LEADER_OR_FOLLOWER": 6,
        "REQUEST_TIMED_OUT": 7,
        "INVALID_TOPIC_EXCEPTION": 17,
        "TOPIC_AUTHORIZATION_FAILED": 29,
        "POLICY_VIOLATION": 44,
    }


@pytest.mark.parametrize("error", [error for error in ErrorCode if error is not ErrorCode.NONE])
def test_every_refusal_says_why_and_what_to_do(error: ErrorCode) -> None:
    assert way_out(error, {0: state_of()}, 0)
    assert f"`{error.name}`" in DOCUMENTATION


@pytest.mark.parametrize(
    ("policy", "partition", "offset", "note"),
    [
        pytest.param("delete", 0, 7, "", id="granted"),
        pytest.param(
            "delete",
            0,
            101,
            "the log has offsets 5 to 100; request 0 to 100, or -1 for the high watermark",
            id="out of range",
        ),
        pytest.param(
            "delete",
            7,
            0,
            "the topic has no such partition in the lake; it has 0, 1",
            id="no such partition",
        ),
        pytest.param(
            "compact",
            0,
            7,
            "cleanup.policy is compact alone, which Kafka refuses too; set "
            "kafka.cleanup.policy=compact,delete with configure_topic, or erase keys with "
            "erase_keys",
            id="compact alone",
        ),
    ],
)
def test_an_answer_has_the_way_out(policy: str, partition: int, offset: int, note: str) -> None:
    states = {0: state_of(log_start_offset=5), 1: state_of()}
    config = TopicConfig(cleanup_policy=frozenset({policy}))
    assert answer_partition("t", config, states, partition, offset).note == note
