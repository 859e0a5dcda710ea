from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pendulum
import pytest

from ebbtide.errors import RequestError
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import (
    AtOffset,
    AtTime,
    CommittedBy,
    DeleteRequest,
    OlderThan,
    Selector,
    TopicRequest,
    parse_request,
)

NOW_MS = int(datetime(2026, 3, 31, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 24 * 60 * 60 * 1000
P0 = {"partition": 0, "offset": 1}


def topic(name: Any, *partitions: Any, **fields: Any) -> dict[str, Any]:
    return {"topic": name, **({"partitions": list(partitions)} if partitions else {}), **fields}


def parse(*topics: Any, **fields: Any) -> DeleteRequest:
    return parse_request(json.dumps({"topics": list(topics), **fields}))


def test_a_request_names_topics_partitions_and_offsets() -> None:
    request = parse(
        topic("log.a", {"partition": 0, "offset": -1}, {"partition": 1, "offset": 7}),
        topic("log.b.c", {"partition": 0, "offset": 0}),
        timeout_ms=5,
    )
    assert request.topics == {
        TopicName("log", "a"): TopicRequest({0: AtOffset(-1), 1: AtOffset(7)}),
        TopicName("log", "b.c"): TopicRequest({0: AtOffset(0)}),
    }
    assert request.timeout_ms == 5


@pytest.mark.parametrize(
    "age",
    ["P", "PT", "P1DT", "P-1D", "-P1D", "P1", "1D", "PT1D", "P1H", "P4294967297D", "P1D ", "p1d"],
)
def test_an_age_that_is_no_duration(age: str) -> None:
    with pytest.raises(
        RequestError, match=r'^expected an ISO 8601 duration such as "P30D" for age'
    ):
        parse(topic("log.a", age=age))


@pytest.mark.parametrize("age", ["P0D", "PT0S", "P0Y0M0DT0H", "P0W", "PT0.0S"])
def test_an_age_of_nothing_would_delete_everything(age: str) -> None:
    with pytest.raises(
        RequestError,
        match=rf"^expected an age above zero in topics\[0\], found '{age}', which matches every",
    ):
        parse(topic("log.a", age=age))


@pytest.mark.parametrize(
    ("age", "ms"),
    [
        ("P1D", DAY_MS),
        ("P1W", 7 * DAY_MS),
        ("PT36H", 1.5 * DAY_MS),
        ("P1DT12H", 1.5 * DAY_MS),
        ("PT1M", 60_000),
        ("P999999D", NOW_MS),
    ],
)
def test_an_age_is_as_long_as_it_says(age: str, ms: int) -> None:
    selector = parse(topic("log.a", age=age)).topics[TopicName("log", "a")].everywhere
    assert isinstance(selector, OlderThan)
    assert selector.at(NOW_MS) == AtTime(NOW_MS - int(ms))


def test_without_a_timeout_it_is_the_kips_client_default() -> None:
    assert parse(topic("log.a", P0)).timeout_ms == 30_000


@pytest.mark.parametrize(
    ("fields", "selector"),
    [
        ({"offset": -2}, AtOffset(-2)),
        ({"timestamp": 0}, AtTime(0)),
        ({"timestamp": 1_700_000_000_123}, AtTime(1_700_000_000_123)),
        ({"timestamp": "1970-01-01T00:00:01Z"}, AtTime(1000)),
        ({"timestamp": "1970-01-01T02:00:01.5+02:00"}, AtTime(1500)),
        pytest.param(
            {"timestamp": "1970-01-01T00:00:00.000001Z"},
            AtTime(1),
            id="the first whole millisecond at or after it",
        ),
        ({"age": "P30D"}, OlderThan(pendulum.duration(days=30), "P30D")),
        ({"groups": ["a"]}, CommittedBy(("a",), None)),
        ({"groups": ["a", "b"], "connection": "live"}, CommittedBy(("a", "b"), "live")),
    ],
)
def test_up_to_where(fields: dict[str, Any], selector: Selector) -> None:
    request = parse(topic("log.a", {"partition": 3, **fields}), topic("log.b", **fields))
    in_one, in_all = request.topics.values()
    assert in_one.of([0, 3]) == {3: selector}
    assert in_all.of([0, 3]) == {0: selector, 3: selector}


@pytest.mark.parametrize(
    ("age", "then_ms"),
    [
        ("P30D", NOW_MS - 30 * DAY_MS),
        ("PT0.5S", NOW_MS - 500),
        ("P2W", NOW_MS - 14 * DAY_MS),
        pytest.param(
            "P1M", NOW_MS - 31 * DAY_MS, id="a month back from the 31st ends on February's last day"
        ),
        pytest.param("P100Y", 0, id="not before 1970"),
        pytest.param("P9999Y", 0, id="nor before the calendar begins"),
    ],
)
def test_an_age_counts_back_from_now(age: str, then_ms: int) -> None:
    (asked,) = parse(topic("log.a", age=age)).topics.values()
    assert isinstance(asked.everywhere, OlderThan)
    assert asked.everywhere.at(NOW_MS) == AtTime(then_ms)


def test_the_connections_it_names() -> None:
    live = {"partition": 0, "groups": ["a"], "connection": "live"}
    by_default = {"partition": 1, "groups": ["a"]}
    requests = [topic("log.a", live, by_default), topic("log.b", groups=["a"], connection="other")]
    named = [asked.connections for asked in parse(*requests, topic("log.c", P0)).topics.values()]
    assert named == [{"live"}, {"other"}, set()]


IN_TOPIC = "in topics[0]"
IN_PARTITION = "in topics[0].partitions[0]"
OFFSETS = f"[{-(2**63)}, {2**63 - 1}]"
PARTITIONS = f"[0, {2**31 - 1}]"


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        pytest.param({}, "expected list for topics in request, found {}", id="topics no list"),
        pytest.param([], "expected at least one topic in topics, found none", id="no topic"),
        pytest.param([7], "expected an object for topics[0], found 7", id="a topic that is none"),
        pytest.param(
            [topic("log.a", P0), {"partitions": []}],
            "expected the field 'topic' in topics[1], found {'partitions': []}",
            id="a topic without name",
        ),
        pytest.param(
            [topic(7, P0)],
            f"expected text for topic {IN_TOPIC}, found 7",
            id="a name that is no text",
        ),
        pytest.param(
            [topic("flights", P0)],
            f"expected <cluster>.<topic>, found 'flights' for topic {IN_TOPIC}",
            id="a topic without cluster",
        ),
        pytest.param(
            [topic("log.a", P0), topic("log.a", P0)],
            "expected each topic once, found log.a again in topics[1]",
            id="a topic named twice",
        ),
        pytest.param(
            [topic("log.a")],
            "expected exactly one of partitions, offset, timestamp, age, groups "
            f"{IN_TOPIC}, found none",
            id="a topic without partitions",
        ),
        pytest.param(
            [topic("log.a", P0, age="P1D")],
            "expected exactly one of partitions, offset, timestamp, age, groups "
            f"{IN_TOPIC}, found partitions and age",
            id="all partitions and some",
        ),
        pytest.param(
            [topic("log.a", partitions=[])],
            f"expected at least one partition {IN_TOPIC}, found none",
            id="no partition",
        ),
        pytest.param(
            [topic("log.a", P0, P0)],
            "expected each partition once, found 0 again in topics[0].partitions[1]",
            id="a partition named twice",
        ),
        pytest.param(
            [topic("log.a", P0, ofset=1)],
            "expected no field but age, connection, groups, offset, partitions, timestamp, topic "
            f"{IN_TOPIC}, found 'ofset'",
            id="a field nobody knows",
        ),
        pytest.param(
            [topic("log.a", {**P0, "leader": 1})],
            "expected no field but age, connection, groups, offset, partition, timestamp "
            f"{IN_PARTITION}, found 'leader'",
            id="a partition's field nobody knows",
        ),
        pytest.param(
            [topic("log.a", {"partition": 0})],
            f"expected exactly one of offset, timestamp, age, groups {IN_PARTITION}, found none",
            id="nothing to go by",
        ),
        pytest.param(
            [topic("log.a", {**P0, "timestamp": 1})],
            f"expected exactly one of offset, timestamp, age, groups {IN_PARTITION}, "
            "found offset and timestamp",
            id="two things to go by",
        ),
        pytest.param(
            [topic("log.a", {"offset": 1})],
            f"expected the field 'partition' {IN_PARTITION}, found {{'offset': 1}}",
            id="no partition's number",
        ),
        pytest.param(
            [topic("log.a", {"partition": 0, "offset": "7"})],
            f"expected an integer in {OFFSETS} for offset {IN_PARTITION}, found '7'",
            id="an offset that is no number",
        ),
        pytest.param(
            [topic("log.a", {"partition": 0, "offset": 2**63})],
            f"expected an integer in {OFFSETS} for offset {IN_PARTITION}, found {2**63}",
            id="an offset that Kafka cannot hold",
        ),
        pytest.param(
            [topic("log.a", {"partition": True, "offset": 7})],
            f"expected an integer in {PARTITIONS} for partition {IN_PARTITION}, found True",
            id="a partition that is a boolean",
        ),
        pytest.param(
            [topic("log.a", {"partition": -1, "offset": 7})],
            f"expected an integer in {PARTITIONS} for partition {IN_PARTITION}, found -1",
            id="a partition below 0",
        ),
        pytest.param(
            [topic("log.a", timestamp=-1)],
            f"expected an integer in [0, {(2**63 - 1) // 1000}] for timestamp {IN_TOPIC}, found -1",
            id="a time that offsetsForTimes would refuse",
        ),
        pytest.param(
            [topic("log.a", timestamp="2026-01-01T00:00:00")],
            "expected ms since the epoch, or ISO 8601 with a zone and not before 1970, for "
            f"timestamp {IN_TOPIC}, found '2026-01-01T00:00:00'",
            id="a time without zone",
        ),
        pytest.param(
            [topic("log.a", timestamp="yesterday")],
            "expected ms since the epoch, or ISO 8601 with a zone and not before 1970, for "
            f"timestamp {IN_TOPIC}, found 'yesterday'",
            id="a time in words",
        ),
        pytest.param(
            [topic("log.a", age="30 days")],
            f"expected an ISO 8601 duration such as \"P30D\" for age {IN_TOPIC}, found '30 days'",
            id="an age in words",
        ),
        pytest.param(
            [topic("log.a", age="2026-01-01")],
            f'expected an ISO 8601 duration such as "P30D" for age {IN_TOPIC}, '
            "found '2026-01-01'",
            id="an age that is a date",
        ),
        pytest.param(
            [topic("log.a", age="P")],
            f"expected an ISO 8601 duration such as \"P30D\" for age {IN_TOPIC}, found 'P'",
            id="an age of nothing",
        ),
        pytest.param(
            [topic("log.a", groups=[])],
            f"expected the ids of consumer groups for groups {IN_TOPIC}, found []",
            id="no group",
        ),
        pytest.param(
            [topic("log.a", groups="a")],
            f"expected list for groups {IN_TOPIC}, found 'a'",
            id="groups that are no list",
        ),
        pytest.param(
            [topic("log.a", groups=["a", "a"])],
            f"expected each group once {IN_TOPIC}, found ['a', 'a']",
            id="a group named twice",
        ),
        pytest.param(
            [topic("log.a", groups=["a"], connection="")],
            f"expected text for connection {IN_TOPIC}, found ''",
            id="a connection without name",
        ),
        pytest.param(
            [topic("log.a", offset=1, connection="live")],
            f"expected a connection only with groups, found one with offset {IN_TOPIC}",
            id="a connection without groups",
        ),
        pytest.param(
            [topic("log.a", P0, connection="live")],
            f"expected a connection only with groups, found one with partitions {IN_TOPIC}",
            id="a connection with partitions",
        ),
    ],
)
def test_a_malformed_request_is_refused_naming_the_field(topics: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        parse_request(json.dumps({"topics": topics}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("offset=7", "expected a request in JSON, found Expecting value: line 1 column 1 (char 0)"),
        ("[]", "expected an object for request, found []"),
        ("{}", "expected the field 'topics' in request, found {}"),
        (
            '{"topics": [], "timeout": 1}',
            "expected no field but timeout_ms, topics in request, found 'timeout'",
        ),
        (
            '{"topics": [{"topic": "log.a", "offset": 1}], "timeout_ms": -1}',
            f"expected an integer in {PARTITIONS} for timeout_ms in request, found -1",
        ),
        (
            '{"topics": [{"topic": "log.a", "offset": 1, "offset": 2}]}',
            "expected each field once, found 'offset' twice in one object",
        ),
    ],
)
def test_what_is_no_request_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        parse_request(text)
