"""Schemas of tables as their writers make them, in Iceberg's JSON."""

from itertools import count
from typing import Any

from ebbtide.layouts.layout import Choices

Schema = dict[str, Any]


def schema(**columns: Any) -> Schema:
    """Columns by name, each a type or a dict of columns; ids are given in order."""
    return {"type": "struct", "schema-id": 0, "fields": _fields(columns, count(1))}


def _fields(columns: dict[str, Any], ids: Any) -> list[dict[str, Any]]:
    fields = [
        {"id": next(ids), "name": name, "required": False, "type": kind}
        for name, kind in columns.items()
    ]
    for field in fields:
        if isinstance(field["type"], dict) and "type" not in field["type"]:
            field["type"] = {"type": "struct", "fields": _fields(field["type"], ids)}
    return fields


SPARK = schema(
    key="binary",
    value="binary",
    topic="string",
    partition="int",
    offset="long",
    timestamp="timestamptz",
    timestampType="int",
)
REDPANDA = schema(
    redpanda={
        "partition": "int",
        "timestamp": "timestamptz",
        "offset": "long",
        "key": "binary",
        "timestamp_type": "int",
    },
    value="binary",
)
REDPANDA_WITH_SCHEMA = schema(
    redpanda={"partition": "int", "timestamp": "timestamptz", "offset": "long", "key": "binary"},
    id="long",
    name="string",
)
TABLEFLOW = schema(
    **{
        "side": "string",
        "$$topic": "string",
        "$$partition": "int",
        "$$headers": "string",
        "$$leader-epoch": "int",
        "$$offset": "long",
        "$$timestamp": "timestamptz",
        "$$timestamp-type": "string",
        "$$raw-key": "binary",
        "$$raw-value": "binary",
    }
)
TABLEFLOW_PORTABLE = schema(
    key="binary",
    value="binary",
    cflt_metadata_partition="int",
    cflt_metadata_offset="long",
    cflt_metadata_timestamp="timestamptz",
    cflt_metadata_raw_key="binary",
    cflt_metadata_raw_value="binary",
)
AIVEN = schema(
    kafka={
        "partition": "int",
        "offset": "long",
        "timestamp": "long",
        "batch_base_offset": "long",
    },
    key="binary",
    key_raw="binary",
    value={"n": "int"},
    value_raw="binary",
)
CONNECT = schema(
    id="string",
    amount="long",
    _kafka_metadata={
        "topic": "string",
        "partition": "int",
        "offset": "long",
        "timestamp": "long",
    },
)
CONNECT_FLAT = schema(
    id="string",
    _kafka_metadata_topic="string",
    _kafka_metadata_partition="int",
    _kafka_metadata_offset="long",
    _kafka_metadata_timestamp="long",
)
DEBEZIUM = schema(
    id="long",
    _cdc={"op": "string", "ts": "timestamptz", "offset": "long", "key": {"id": "long"}},
    _kafka_metadata={"topic": "string", "partition": "int", "offset": "long", "timestamp": "long"},
)
AUTOMQ = schema(
    id="long",
    _kafka_header={"type": "map", "key-id": 90, "key": "string", "value-id": 91, "value": "binary"},
    _kafka_key="string",
    _kafka_metadata={"partition": "int", "offset": "long", "timestamp": "long"},
)
AUTOMQ_SCHEMALESS = schema(
    key="string",
    value="string",
    timestamp="long",
    _kafka_key="string",
    _kafka_metadata={"partition": "int", "offset": "long", "timestamp": "long"},
)
AUTOMQ_DEBEZIUM = schema(
    id="long",
    _cdc={"op": "string", "ts": "long", "offset": "long", "source": "string"},
    _kafka_key="string",
    _kafka_metadata={"partition": "int", "offset": "long", "timestamp": "long"},
)
OTHER = schema(p="long", o="long", at="timestamp", k="string", v="string")
MAPPED = Choices(partition="p", offset="o", timestamp="at", key="k", value="v")
