from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import ConfigurationError
from ebbtide.numbers import MAX_INT, MAX_LONG, MIN_LONG
from ebbtide.settings.config import (
    OF_TIMESTAMP,
    EventTime,
    TombstoneHeader,
    TopicConfig,
    parse_config,
    settings,
)

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
    ("ebbtide.erase.deadline.ms", "erase_deadline_ms", None, 1, MAX_LONG),
    ("ebbtide.nightly.interval.ms", "nightly_interval_ms", DAY_MS, 1, 365 * DAY_MS),
    ("ebbtide.undo.retention.ms", "undo_retention_ms", 3 * DAY_MS, 0, 365 * DAY_MS),
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
    ("ebbtide.clean.without.new.data", "cleans_without_new_data", True),
    ("ebbtide.source", "upstream", None),
    ("ebbtide.replicas", "replicas", ()),
    ("ebbtide.erase.destroyed.secrets", "destroyed_secrets", ()),
    ("ebbtide.rewrite.deleted.ratio", "rewrite_deleted_ratio", 0.3),
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


POLICY, EVENT_TIME = "kafka.cleanup.policy", "ebbtide.event.time"
HEADER, PREDICATE = "ebbtide.tombstone.header", "ebbtide.tombstone.predicate"
TYPE, COMBINE = "kafka.message.timestamp.type", "ebbtide.retention.combine"
GRANULARITY = "ebbtide.retention.granularity"
RATIOS = (
    *("kafka.min.cleanable.dirty.ratio", "ebbtide.rewrite.deleted.ratio"),
    "ebbtide.max.delete.ratio",
)
SWITCHES = (
    *("ebbtide.enabled", "ebbtide.clean.without.new.data", "ebbtide.tombstone.explicit"),
    *("ebbtide.plan.four.eyes", "ebbtide.plan.show.keys"),
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *((name, text, float(text)) for name in RATIOS for text in ("0", "0.25", "1")),
        *((name, text, text == " True ") for name in SWITCHES for text in ("false", " True ")),
        (POLICY, "compact", frozenset({"compact"})),
        (POLICY, "delete", frozenset({"delete"})),
        (POLICY, "compact,delete", frozenset({"compact", "delete"})),
        (POLICY, " delete , compact ", frozenset({"compact", "delete"})),
        (POLICY, "", frozenset()),
        (TYPE, "CreateTime", "CreateTime"),
        (TYPE, "LogAppendTime", "LogAppendTime"),
        (COMBINE, "any", False),
        (COMBINE, "all", True),
        (GRANULARITY, "segment", False),
        (GRANULARITY, "record", True),
        (EVENT_TIME, "timestamp", OF_TIMESTAMP),
        (EVENT_TIME, "header:event-time", EventTime("header", "event-time")),
        (EVENT_TIME, "header:a:b", EventTime("header", "a:b")),
        (EVENT_TIME, "sql:key IS NULL", EventTime("sql", "key IS NULL")),
        ("kafka.topic.id", "a-B_c", "a-B_c"),
        (HEADER, "op", TombstoneHeader("op")),
        (HEADER, "op=d", TombstoneHeader("op", "d")),
        (HEADER, "op=", TombstoneHeader("op", "")),
        (HEADER, "op=a=b", TombstoneHeader("op", "a=b")),
        (PREDICATE, "key IS NULL", "key IS NULL"),
    ],
)
def test_what_a_text_is_read_as(name: str, text: str, value: object) -> None:
    assert value_of(name, text) == value


POLICIES = "compact, delete, both separated by a comma, or nothing"
EVENT_TIMES = "timestamp, header:NAME or sql:EXPRESSION"
PREDICATES = "a SQL predicate over key, value, headers and timestamp"
OTHER_TEXTS = [
    *(
        (name, "a number in [0, 1]", ["-0.01", "1.01", "nan", "inf", "half", "", "0_1"])
        for name in RATIOS
    ),
    *((name, "one of true, false", ["yes"]) for name in SWITCHES),
    (POLICY, POLICIES, ["keep", "Compact", "compact,", "compact,compact", "compact;delete"]),
    (TYPE, "one of CreateTime, LogAppendTime", ["createtime"]),
    (COMBINE, "one of any, all", ["", "ANY", "both"]),
    (GRANULARITY, "one of segment, record", ["", "SEGMENT", "both"]),
    (EVENT_TIME, EVENT_TIMES, ["", "key", "timestamp:", "header", "header:", "sql: ", "SQL:1"]),
    (HEADER, "NAME or NAME=VALUE", ["", " ", "=d"]),
    (PREDICATE, PREDICATES, [" "]),
]


@pytest.mark.parametrize(
    ("name", "expected", "text"), [(n, e, text) for n, e, texts in OTHER_TEXTS for text in texts]
)
def test_any_other_text_is_refused(name: str, expected: str, text: str) -> None:
    assert refusal({name: text}) == f"expected {expected} for {name}, found {text!r}"


@pytest.mark.parametrize("policy", [None, "", "compact", "delete", "compact,delete"])
def test_a_cleanup_policy_compacts_and_deletes(policy: str | None) -> None:
    config = parse_config({} if policy is None else {POLICY: policy})
    assert config.is_compacted == ("compact" in (policy or ""))
    assert config.is_deleted == ("delete" in (policy or ""))


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
