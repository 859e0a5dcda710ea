from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import ConfigurationError
from ebbtide.log.settings.config import (
    OF_TIMESTAMP,
    EventTime,
    TombstoneHeader,
    TopicConfig,
    parse_config,
    settings,
)
from ebbtide.numbers import MAX_INT, MAX_LONG, MIN_LONG

DAY_MS = 86_400_000
MIB = 1024 * 1024

# property, field, default, smallest, largest
INTEGERS = [
    ("kafka.delete.retention.ms", "delete_retention_ms", DAY_MS, 0, MAX_LONG),
    ("kafka.min.compaction.lag.ms", "min_compaction_lag_ms", 0, 0, MAX_LONG),
    ("kafka.max.compaction.lag.ms", "max_compaction_lag_ms", MAX_LONG, 1, MAX_LONG),
    ("kafka.retention.ms", "retention_ms", None, -1, MAX_LONG),
    ("kafka.retention.bytes", "retention_bytes", None, MIN_LONG, MAX_LONG),
    ("kafka.retention.max.eventtime.ms", "retention_max_eventtime_ms", None, -1, MAX_LONG),
    ("kafka.segment.bytes", "segment_bytes", 1024 * MIB, MIB, MAX_INT),
    ("kafka.segment.ms", "segment_ms", 7 * DAY_MS, 1, MAX_LONG),
    ("kafka.max.message.bytes", "max_message_bytes", MIB + 12, 0, MAX_INT),
    (
        "kafka.message.timestamp.after.max.ms",
        "message_timestamp_after_max_ms",
        3_600_000,
        0,
        MAX_LONG,
    ),
    ("kafka.producer.id.expiration.ms", "producer_id_expiration_ms", DAY_MS, 1, MAX_INT),
    ("ebbtide.merge.target.bytes", "merge_target_bytes", 64 * MIB, 0, MAX_LONG),
    ("ebbtide.max.delete.records", "max_delete_records", None, 0, MAX_LONG),
    ("ebbtide.max.delete.bytes", "max_delete_bytes", None, 0, MAX_LONG),
    ("ebbtide.max.emptied.partitions", "max_emptied_partitions", None, 0, MAX_INT),
    ("ebbtide.plan.expire.ms", "plan_expire_ms", DAY_MS, 1, 365 * DAY_MS),
    ("ebbtide.undo.ms", "undo_ms", 3 * DAY_MS, 0, 365 * DAY_MS),
    (
        "ebbtide.max.decompressed.batch.bytes",
        "max_decompressed_batch_bytes",
        512 * MIB,
        1,
        MAX_LONG,
    ),
]
OTHERS = [
    ("kafka.cleanup.policy", "cleanup_policy", None),
    ("kafka.min.cleanable.dirty.ratio", "min_cleanable_dirty_ratio", 0.5),
    ("kafka.message.timestamp.type", "message_timestamp_type", "CreateTime"),
    ("kafka.topic.id", "topic_id", None),
    ("ebbtide.enabled", "is_enabled", True),
    ("ebbtide.clean.idle", "cleans_idle", True),
    ("ebbtide.source", "upstream", None),
    ("ebbtide.replicas", "replicas", ()),
    ("ebbtide.rewrite.deleted.share", "rewrite_deleted_share", 0.3),
    ("ebbtide.max.delete.ratio", "max_delete_ratio", 0.5),
    ("ebbtide.plan.four.eyes", "plans_need_four_eyes", False),
    ("ebbtide.plan.show.keys", "plans_show_keys", False),
    ("ebbtide.retention.combine", "needs_all_time_limits", False),
    ("ebbtide.retention.granularity", "expires_records", False),
    ("ebbtide.event.time", "event_time", OF_TIMESTAMP),
    ("ebbtide.tombstone.explicit", "tombstones_are_explicit", False),
    ("ebbtide.tombstone.header", "tombstone_header", None),
    ("ebbtide.tombstone.predicate", "tombstone_predicate", None),
]
DEFAULTS = [(name, field, default) for name, field, default, *_ in INTEGERS] + OTHERS


def value_of(name: str, text: str) -> Any:
    """What a setting alone is read as."""
    field = {name: field for name, field, _ in DEFAULTS}[name]
    return getattr(parse_config({name: text}), field)


def refusal(properties: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        parse_config(properties)
    return str(refused.value)


@pytest.mark.parametrize(("field", "default"), [case[1:] for case in DEFAULTS])
def test_an_absent_setting_has_its_default(field: str, default: object) -> None:
    assert getattr(parse_config({}), field) == default


def test_these_are_all_settings() -> None:
    assert settings() == sorted(name for name, *_ in DEFAULTS)
    assert {field.name for field in fields(TopicConfig)} == {field for _, field, _ in DEFAULTS}


@pytest.mark.parametrize(("name", "smallest", "largest"), [(n, s, b) for n, _, _, s, b in INTEGERS])
class TestIntegers:
    def test_the_edges_of_its_range_are_in(self, name: str, smallest: int, largest: int) -> None:
        lag = {"kafka.max.compaction.lag.ms": str(MAX_LONG)} if "min.compaction" in name else {}
        parse_config({name: str(smallest), **lag})
        parse_config({name: str(largest), **lag})

    def test_what_lies_outside_is_refused(self, name: str, smallest: int, largest: int) -> None:
        for outside in (smallest - 1, largest + 1):
            assert refusal({name: str(outside)}) == (
                f"expected an integer in [{smallest}, {largest}] for {name}, found '{outside}'"
            )

    @pytest.mark.parametrize("text", ["", "1.0", "1e3", "a day", "1_000", "١"])
    def test_what_is_no_integer_is_refused(
        self, name: str, smallest: int, largest: int, text: str
    ) -> None:
        assert refusal({name: text}) == (
            f"expected an integer in [{smallest}, {largest}] for {name}, found {text!r}"
        )


def test_space_around_a_number_is_no_part_of_it() -> None:
    assert value_of("kafka.delete.retention.ms", " 7 ") == 7


RATIOS = [
    "kafka.min.cleanable.dirty.ratio",
    "ebbtide.rewrite.deleted.share",
    "ebbtide.max.delete.ratio",
]


@pytest.mark.parametrize("name", RATIOS)
class TestRatios:
    @pytest.mark.parametrize(("text", "ratio"), [("0", 0.0), ("0.25", 0.25), ("1", 1.0)])
    def test_a_number_from_0_to_1_is_one(self, name: str, text: str, ratio: float) -> None:
        assert value_of(name, text) == ratio

    @pytest.mark.parametrize("text", ["-0.01", "1.01", "nan", "inf", "half", "", "0_1"])
    def test_anything_else_is_refused(self, name: str, text: str) -> None:
        assert refusal({name: text}) == f"expected a number in [0, 1] for {name}, found {text!r}"


@pytest.mark.parametrize(
    ("text", "policy", "is_compacted", "is_deleted"),
    [
        pytest.param("compact", {"compact"}, True, False, id="compact"),
        pytest.param("delete", {"delete"}, False, True, id="delete"),
        pytest.param("compact,delete", {"compact", "delete"}, True, True, id="both"),
        pytest.param(" delete , compact ", {"compact", "delete"}, True, True, id="with space"),
        pytest.param("", set(), False, False, id="nothing"),
    ],
)
def test_a_cleanup_policy(
    text: str, policy: set[str], is_compacted: bool, is_deleted: bool
) -> None:
    config = parse_config({"kafka.cleanup.policy": text})
    assert config.cleanup_policy == frozenset(policy)
    assert (config.is_compacted, config.is_deleted) == (is_compacted, is_deleted)


def test_no_cleanup_policy_is_neither() -> None:
    assert (TopicConfig().is_compacted, TopicConfig().is_deleted) == (False, False)


@pytest.mark.parametrize(
    "text", ["keep", "Compact", "compact,", "compact,compact", "compact;delete"]
)
def test_any_other_cleanup_policy_is_refused_as_kafka_does(text: str) -> None:
    assert refusal({"kafka.cleanup.policy": text}) == (
        "expected compact, delete, both separated by a comma, or nothing for "
        f"kafka.cleanup.policy, found {text!r}"
    )


@pytest.mark.parametrize("text", ["CreateTime", "LogAppendTime"])
def test_a_timestamp_type(text: str) -> None:
    assert value_of("kafka.message.timestamp.type", text) == text


def test_any_other_timestamp_type_is_refused() -> None:
    assert refusal({"kafka.message.timestamp.type": "createtime"}) == (
        "expected one of CreateTime, LogAppendTime for kafka.message.timestamp.type, "
        "found 'createtime'"
    )


@pytest.mark.parametrize("name", ["ebbtide.enabled", "ebbtide.clean.idle"])
def test_a_switch_is_true_or_false(name: str) -> None:
    assert value_of(name, "false") is False
    assert value_of(name, " True ") is True
    assert refusal({name: "yes"}) == f"expected one of true, false for {name}, found 'yes'"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ebbtide.retention.combine", ("any", "all")),
        ("ebbtide.retention.granularity", ("segment", "record")),
    ],
)
def test_a_choice_is_one_of_two_words(name: str, words: tuple[str, str]) -> None:
    assert [value_of(name, word) for word in words] == [False, True]
    for other in ("", words[0].upper(), "both"):
        assert refusal({name: other}) == (
            f"expected one of {', '.join(words)} for {name}, found {other!r}"
        )


@pytest.mark.parametrize(
    ("text", "event_time"),
    [
        ("timestamp", OF_TIMESTAMP),
        ("header:event-time", EventTime("header", "event-time")),
        ("header:a:b", EventTime("header", "a:b")),
        ("sql:timestamp - INTERVAL 1 DAY", EventTime("sql", "timestamp - INTERVAL 1 DAY")),
    ],
)
def test_an_event_time(text: str, event_time: EventTime) -> None:
    assert value_of("ebbtide.event.time", text) == event_time


@pytest.mark.parametrize("text", ["", "key", "timestamp:", "header", "header:", "sql: ", "SQL:1"])
def test_any_other_event_time_is_refused(text: str) -> None:
    assert refusal({"ebbtide.event.time": text}) == (
        f"expected timestamp, header:NAME or sql:EXPRESSION for ebbtide.event.time, found {text!r}"
    )


def test_a_topic_id_is_taken_as_it_is() -> None:
    assert value_of("kafka.topic.id", "a-B_c") == "a-B_c"


def test_the_compaction_lags_must_not_cross() -> None:
    lags = {"kafka.min.compaction.lag.ms": "8", "kafka.max.compaction.lag.ms": "7"}
    assert refusal(lags) == (
        "expected kafka.min.compaction.lag.ms <= kafka.max.compaction.lag.ms, found 8 > 7"
    )
    parse_config({**lags, "kafka.max.compaction.lag.ms": "8"})


def test_a_name_that_kafka_does_not_know_is_refused() -> None:
    assert refusal({"kafka.retention": "1"}) == (
        "expected a topic configuration that Kafka knows, found kafka.retention; "
        f"known here: {', '.join(settings())}"
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("kafka.compression.type", id="Kafka's that decide nothing here"),
        pytest.param("kafka.topic", id="the topic's true name"),
        pytest.param("write.format.default", id="the table's own"),
        pytest.param("ebbtide.state.0.log-start-offset", id="the state"),
    ],
)
def test_other_properties_are_passed_over(name: str) -> None:
    assert parse_config({name: "anything"}) == TopicConfig()


@given(case=st.sampled_from(INTEGERS), value=st.integers(-(2**70), 2**70))
def test_an_integer_is_taken_exactly_where_its_range_holds_it(
    case: tuple[str, str, int | None, int, int], value: int
) -> None:
    name, field, _, smallest, largest = case
    properties = {"kafka.max.compaction.lag.ms": str(MAX_LONG), name: str(value)}
    if smallest <= value <= largest:
        assert getattr(parse_config(properties), field) == value
    else:
        assert re.search(rf"for {re.escape(name)}, found '{value}'$", refusal(properties))


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("op", TombstoneHeader("op")),
        ("op=d", TombstoneHeader("op", "d")),
        ("op=", TombstoneHeader("op", "")),
        ("op=a=b", TombstoneHeader("op", "a=b")),
    ],
)
def test_a_tombstone_header(text: str, header: TombstoneHeader) -> None:
    assert value_of("ebbtide.tombstone.header", text) == header


@pytest.mark.parametrize("text", ["", " ", "=d"])
def test_a_tombstone_header_without_a_name_is_refused(text: str) -> None:
    assert refusal({"ebbtide.tombstone.header": text}) == (
        f"expected NAME or NAME=VALUE for ebbtide.tombstone.header, found {text!r}"
    )


def test_a_tombstone_predicate_is_not_empty() -> None:
    assert value_of("ebbtide.tombstone.predicate", "key IS NULL") == "key IS NULL"
    assert refusal({"ebbtide.tombstone.predicate": " "}) == (
        "expected a SQL predicate over key, value, headers and timestamp for "
        "ebbtide.tombstone.predicate, found ' '"
    )


def test_tombstones_are_explicit_or_not() -> None:
    assert value_of("ebbtide.tombstone.explicit", "True") is True
    assert refusal({"ebbtide.tombstone.explicit": "yes"}) == (
        "expected one of true, false for ebbtide.tombstone.explicit, found 'yes'"
    )
