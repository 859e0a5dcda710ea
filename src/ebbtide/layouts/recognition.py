"""Recognise the layout of a table by its schema, with one profile per known writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ebbtide.errors import NotCoveredError
from ebbtide.layouts.layout import Choices, Column, Columns, Layout, chosen_column
from ebbtide.settings.names import quoted_list

_WHOLE_NUMBERS = frozenset({"int", "long"})
_TIMES = frozenset({"long", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_PLACE = ("partition", "offset", "timestamp")
_METADATA = "_kafka_metadata"
_SCHEMALESS = {"key", "value", "timestamp"}
# Tableflow's column of each part, without the prefix of one of its two naming schemes.
_TABLEFLOW = {
    **{part: part for part in ("partition", "offset", "timestamp", "topic", "headers")},
    "key": "raw-key",
    "value": "raw-value",
}
_TABLEFLOW_PREFIXES = ("$$", "cflt_metadata_")

Parts = Mapping[str, Column | None]


class Profile(NamedTuple):
    """One writer's layout."""

    name: str
    writer: str
    source: str  # documentation of the layout, with its version
    recognise: Callable[[Columns, Choices], Layout | None]  # None: the table has another layout
    # What a user must know before such a table is adopted.
    warning: str = ""
    # Why only the writer may change such tables; empty if other tools may.
    read_only: str = ""


class Recognised(NamedTuple):
    """A table's layout, and the profile that recognised it."""

    profile: Profile
    layout: Layout


def recognise(columns: Columns, choices: Choices, profile: str = "") -> Recognised:
    """Return the layout of a table, by the named profile if one is given.

    Raise NotCoveredError if no profile fits.
    """
    candidates = [
        known_profile for known_profile in PROFILES if not profile or known_profile.name == profile
    ]
    if not candidates:
        known = quoted_list(known_profile.name for known_profile in PROFILES)
        raise NotCoveredError(f"expected one of the profiles {known}, found {profile!r}")
    for candidate in candidates:
        layout = candidate.recognise(columns, choices)
        if layout is not None:
            return Recognised(candidate, layout)
    found = quoted_list(column.name for column in columns.all)
    raise NotCoveredError(
        f"expected the columns of {quoted_list(known_profile.name for known_profile in candidates)}"
        f", found {found}. Name the columns of partition, offset, timestamp, key and value with "
        "--partition-column and so on"
    )


def profile_named(name: str) -> Profile:
    """Return the profile of a layout. Raise NotCoveredError for a profile of a newer version."""
    for profile in PROFILES:
        if profile.name == name:
            return profile
    raise NotCoveredError(
        f"expected a profile of this version, found {name!r}: a newer ebbtide has adopted the "
        "table. Upgrade this one"
    )


def _redpanda(columns: Columns, choices: Choices) -> Layout | None:
    """Struct `redpanda`; then `value`, or the columns of the value's schema.

    "Troubleshoot Iceberg Topics": records that cannot be translated are in `<topic>~dlq`, always
    with `value`.
    """
    parts = _named(columns, "redpanda.", (*_PLACE, "key", "headers"))
    if any(parts[name] is None for name in _PLACE):
        return None
    others = [column for column in columns.top if column.name != "redpanda"]
    is_plain = [column.name for column in others] == ["value"]
    return _built("redpanda", columns, {**parts, "value": others[0] if is_plain else None}, choices)


def _automq(columns: Columns, choices: Choices) -> Layout | None:
    """AutoMQ's key or headers besides its metadata, in tables to which it only appends.

    Package kafka.automq.table.process: RecordAssembler adds `_kafka_header`, `_kafka_key` and
    `_kafka_metadata` with partition, offset and timestamp (ms) to the columns of the value. With
    SchemalessTransform, which retains nulls, these are key, value and timestamp.
    DebeziumUnwrapTransform adds `_cdc` with op. Other converters refuse a null value, and
    StringConverter writes a null key as an empty text.
    """
    parts = _named(columns, f"{_METADATA}.", _PLACE) | {"key": columns.named("_kafka_key")}
    is_automq = parts["key"] is not None or columns.named("_kafka_header") is not None
    if not is_automq or columns.named(f"{_METADATA}.topic") is not None:
        return None
    if {column.name for column in columns.top if not column.name.startswith("_")} == _SCHEMALESS:
        parts |= _named(columns, "", ("key", "value"))
    return _built("automq", columns, parts, _with_deletes(columns, choices))


def _connect_sink(columns: Columns, choices: Choices) -> Layout | None:
    """The metadata of the transform KafkaMetadataTransform, nested, or flat with underscores.

    Debezium's transform adds `_cdc` with op, ts, offset, source, target and key.
    """
    names = ("topic", *_PLACE)
    parts = _named(columns, f"{_METADATA}.", names)
    if parts["offset"] is None:
        parts = _named(columns, f"{_METADATA}_", names)
    if parts["partition"] is None or parts["offset"] is None:
        return None
    parts["key"] = columns.named("_cdc.key")
    return _built("connect_sink", columns, parts, _with_deletes(columns, choices))


def _tableflow(columns: Columns, choices: Choices) -> Layout | None:
    """Append tables, whose metadata columns have one of two naming schemes.

    `metadata_column_naming_scheme`: DEFAULT puts `$$` before a name such as `raw-value`, PORTABLE
    puts `cflt_metadata_`, with underscores for hyphens. Tables of 2026 have the columns of the
    topic's schemas, then topic, partition, headers, leader-epoch, offset, timestamp,
    timestamp-type, raw-key and raw-value. Without a schema, `value` has the bytes.
    """
    prefix = next((p for p in _TABLEFLOW_PREFIXES if columns.named(p + "offset") is not None), None)
    if prefix is None:
        return None
    is_portable = prefix != _TABLEFLOW_PREFIXES[0]
    parts = {
        part: columns.named(prefix + (name.replace("-", "_") if is_portable else name))
        for part, name in _TABLEFLOW.items()
    }
    raw, value = parts.pop("value"), columns.named("value")
    of_schema = [column for column in columns.top if not column.name.startswith(prefix)]
    if value is not None and value.type == "binary":
        of_schema = [value]
    return _built("tableflow", columns, parts, choices, [raw, *of_schema])


def _aiven(columns: Columns, choices: Choices) -> Layout | None:
    """A single copy of the data, from which brokers read their segments.

    RowSchema: struct `kafka` with partition, offset, timestamp and the batch; `headers`, `key` or
    `key_raw`, `value` or `value_raw`.
    """
    if columns.named("kafka.batch_base_offset") is None:
        return None
    parts = _named(columns, "kafka.", _PLACE) | {
        "headers": columns.named("headers"),
        "key": columns.named("key") or columns.named("key_raw"),
    }
    values = map(columns.named, ("value_raw", "value"))
    return _built("aiven", columns, parts, choices, values)


def _spark_source(columns: Columns, choices: Choices) -> Layout | None:
    """The source's own column names: key, value, topic, partition, offset, timestamp, headers."""
    parts = _named(columns, "", (*_PLACE, "key", "value", "topic", "headers"))
    needed = (parts[name] for name in (*_PLACE, "key", "value"))
    if any(column is None for column in needed):
        return None
    return _built("spark_source", columns, parts, choices)


def _explicit(columns: Columns, choices: Choices) -> Layout | None:
    """The columns that the choices name, or None if a required one is missing."""
    return _built(EXPLICIT, columns, {}, choices)


def _named(columns: Columns, prefix: str, names: Iterable[str]) -> dict[str, Column | None]:
    return {name: columns.named(prefix + name) for name in names}


def _with_deletes(columns: Columns, choices: Choices) -> Choices:
    """Choose Debezium's deletes (op `D`) as tombstones, unless the user chose a tombstone."""
    operation = columns.named("_cdc.op")
    if operation is None or choices.tombstone:
        return choices
    return choices._replace(tombstone=f"{operation.name}=D")


def _built(
    profile: str,
    columns: Columns,
    parts: Parts,
    choices: Choices,
    values: Iterable[Column | None] = (),
) -> Layout | None:
    """Return the layout of these parts, choices first, or None without partition, offset or time.

    All `values` are used unless the user chose one.
    """
    named = {name: text for name, text in choices._asdict().items() if text}
    tombstone = named.pop("tombstone", "")
    chosen = {part: chosen_column(columns, name) for part, name in named.items()}
    all_parts = {**parts, **chosen}
    value = all_parts.pop("value", None)
    types = {"partition": _WHOLE_NUMBERS, "offset": _WHOLE_NUMBERS, "timestamp": _TIMES}
    found = [(all_parts.get(part), of_part) for part, of_part in types.items()]
    if any(column is None or column.type not in of_part for column, of_part in found):
        return None
    ids: dict[str, Any] = {
        part: column.field_id for part, column in all_parts.items() if column is not None
    }
    of_value = [value] if value is not None else [column for column in values if column is not None]
    ids["values"] = tuple(column.field_id for column in of_value)
    if tombstone:
        name, _, text = tombstone.partition("=")
        ids |= {"mark": chosen_column(columns, name).field_id, "mark_text": text}
    return Layout(profile=profile, **ids)


EXPLICIT = "explicit"
# The first profile that recognises a table is used.
PROFILES: Sequence[Profile] = (
    Profile(
        "redpanda",
        "Redpanda's Iceberg topics",
        "Redpanda 25.1 to 26.2, About Iceberg Topics",
        _redpanda,
        "Redpanda does not document how it writes a null value. If the topic has a schema, no "
        "tombstones are recognised unless you name a column with --tombstone",
    ),
    Profile(
        "automq",
        "AutoMQ's Table Topic",
        "AutoMQ's sources of 2025, RecordAssembler",
        _automq,
        "only the schemaless transform writes records without a value, and only Debezium's marks "
        "deletes. With another transform, a key that was deleted in Kafka retains its last row. "
        "With upsert enabled, AutoMQ deletes superseded rows itself",
    ),
    Profile(
        "connect_sink",
        "Iceberg's sink for Kafka Connect",
        "Apache Iceberg 1.12, kafka-connect, SMTs",
        _connect_sink,
        "the sink skips records without a value: a key that was deleted in Kafka retains its last "
        "row",
    ),
    Profile(
        "tableflow",
        "Confluent Tableflow",
        "Confluent Cloud API, tableflow/v1, and tables of 2026",
        _tableflow,
        "a record is a tombstone if raw-value and all columns of its schemas are null. If only "
        "tombstones of your table have a null raw-value, name raw-value with --value-column",
        "external engines may only read Tableflow's tables",
    ),
    Profile(
        "aiven",
        "Aiven's Iceberg topics",
        "Aiven-Open/tiered-storage-for-apache-kafka, RowSchema, 2025",
        _aiven,
        "a key that has a schema is copied as JSON",
        "brokers read their log from such tables, so a deleted row would break it",
    ),
    Profile(
        "spark_source",
        "Spark's Kafka source",
        "Spark 4.1, Structured Streaming + Kafka Integration Guide",
        _spark_source,
    ),
    Profile(EXPLICIT, "any writer", "the columns that adopt_table is given", _explicit),
)
