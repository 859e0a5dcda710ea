from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import RequestError
from ebbtide.log.config import TopicConfig
from ebbtide.log.delete_records import (
    HIGH_WATERMARK,
    Answer,
    ErrorCode,
    answer,
    parse_request,
    refused,
    topic_error,
)
from ebbtide.log.names import TopicName

OUT_OF_RANGE = Answer(5, -1, ErrorCode.OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("offset", "answered"),
    [
        pytest.param(7, Answer(7, 7), id="the log start offset moves to it"),
        pytest.param(10, Answer(10, 10), id="up to the high watermark"),
        pytest.param(11, OUT_OF_RANGE, id="not above it"),
        pytest.param(-1, Answer(10, 10), id="-1 is the high watermark"),
        pytest.param(-2, OUT_OF_RANGE, id="nothing else below 0"),
        pytest.param(5, Answer(5, 5), id="the log start offset changes nothing"),
        pytest.param(0, Answer(5, 5), id="nor does one below it: never backwards"),
    ],
)
def test_a_log_from_5_to_10(offset: int, answered: Answer) -> None:
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
    assert refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == Answer(-1, -1, ErrorCode(3))


def test_the_codes_are_kafkas() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {
        "NONE": 0,
        "OFFSET_OUT_OF_RANGE": 1,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "REQUEST_TIMED_OUT": 7,
        "INVALID_TOPIC_EXCEPTION": 17,
        "POLICY_VIOLATION": 44,
    }


def test_a_request_names_topics_partitions_and_offsets() -> None:
    text = json.dumps(
        {
            "topics": [
                topic("log.a", {"partition": 0, "offset": -1}, {"partition": 1, "offset": 7}),
                topic("log.b.c", {"partition": 0, "offset": 0}),
            ],
            "timeout_ms": 30000,
        }
    )
    assert parse_request(text) == {
        TopicName("log", "a"): {0: -1, 1: 7},
        TopicName("log", "b.c"): {0: 0},
    }


def topic(name: Any, *partitions: Any) -> dict[str, Any]:
    return {"topic": name, "partitions": list(partitions)}


P0 = {"partition": 0, "offset": 1}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        pytest.param([], "expected the field 'topics' in request, found []", id="no object"),
        pytest.param({}, "expected the field 'topics' in request, found {}", id="no topics"),
        pytest.param(
            {"topics": {}}, "expected list for topics in request, found {}", id="topics no list"
        ),
        pytest.param(
            {"topics": []}, "expected at least one topic in topics, found none", id="no topic"
        ),
        pytest.param(
            {"topics": [topic("log.a", P0), {"partitions": []}]},
            "expected the field 'topic' in topics[1], found {'partitions': []}",
            id="a topic without name",
        ),
        pytest.param(
            {"topics": [topic(7, P0)]},
            "expected str for topic in topics[0], found 7",
            id="a name that is no text",
        ),
        pytest.param(
            {"topics": [topic("flights", P0)]},
            "expected <cluster>.<topic>, found 'flights'",
            id="a topic without cluster",
        ),
        pytest.param(
            {"topics": [topic("log.a", P0), topic("log.a", P0)]},
            "expected each topic once, found log.a again in topics[1]",
            id="a topic named twice",
        ),
        pytest.param(
            {"topics": [topic("log.a")]},
            "expected at least one partition in topics[0], found none",
            id="no partition",
        ),
        pytest.param(
            {"topics": [topic("log.a", P0, P0)]},
            "expected each partition once, found 0 again in topics[0].partitions[1]",
            id="a partition named twice",
        ),
        pytest.param(
            {"topics": [topic("log.a", {"partition": 0})]},
            "expected the field 'offset' in topics[0].partitions[0], found {'partition': 0}",
            id="no offset",
        ),
        pytest.param(
            {"topics": [topic("log.a", {"partition": 0, "offset": "7"})]},
            "expected int for offset in topics[0].partitions[0], found '7'",
            id="an offset that is no number",
        ),
        pytest.param(
            {"topics": [topic("log.a", {"partition": True, "offset": 7})]},
            "expected int for partition in topics[0].partitions[0], found True",
            id="a partition that is a boolean",
        ),
    ],
)
def test_a_malformed_request_is_refused_naming_the_field(request_: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        parse_request(json.dumps(request_))


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^expected a request in JSON, found Expecting value"):
        parse_request("offset=7")
