"""The tables and views of a lake, as Iceberg's metadata files have them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from ebbtide.iceberg import schema
from ebbtide.iceberg.own_tables import create_own
from ebbtide.iceberg.topics import Topic
from ebbtide.layouts.layout import LAYOUT
from ebbtide.ledger.holds import HOLDS
from ebbtide.ledger.own_tables import ERASURES, RUNS
from ebbtide.ledger.plans import PLAN_EVENTS, PLANS
from ebbtide.ledger.undo_points import UNDO_POINTS
from ebbtide.runner.holds import widen_held_table
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox

OWN, ADOPTED = TopicName.parse("log.t"), TopicName.parse("raw.t")
# Set by Spark: who created a table, and by which version of it.
OF_SPARK = ("owner", "engine_version", "create_engine_version")


def create_all(lake: LakeSandbox) -> None:
    """Create each table and view that ebbtide ever creates."""
    spark = lake.session
    schema.create_topic(spark, OWN, {"kafka.cleanup.policy": "compact"})
    for create_of_topic in (schema.create_quarantine, schema.create_held):
        create_of_topic(spark, OWN)
    for own in (RUNS, PLANS, PLAN_EVENTS, ERASURES, HOLDS, UNDO_POINTS):
        create_own(spark, own)
    schema.create_held_of_others(spark, ADOPTED)
    of_others = spark.sql("SELECT struct(1L AS id, 'v' AS value) AS row")
    widen_held_table(Topic(ADOPTED, {LAYOUT: "{}"}, spark), of_others)


def collect(lake: LakeSandbox) -> dict[str, Any]:
    """Return all tables and views by name."""
    create_all(lake)
    warehouse, described = lake.home / "lake" / "warehouse", {}
    for file in sorted(warehouse.glob("*/*/metadata/*.metadata.json")):  # the newest comes last
        is_zipped = file.name.endswith(".gz.metadata.json")
        content = gzip.decompress(file.read_bytes()) if is_zipped else file.read_bytes()
        metadata = json.loads(content)
        described[".".join(file.relative_to(warehouse).parts[:2])] = {
            **(view(metadata) if "view-uuid" in metadata else table(metadata)),
            "properties": {
                name: value
                for name, value in metadata.get("properties", {}).items()
                if name not in OF_SPARK and not name.startswith("ebbtide.")  # no state
            },
        }
    return described


def table(metadata: Mapping[str, Any]) -> dict[str, Any]:
    current = by_id(metadata["schemas"], "schema-id", metadata["current-schema-id"])
    spec = by_id(metadata["partition-specs"], "spec-id", metadata["default-spec-id"])
    names = {field["id"]: field["name"] for field in current["fields"]}
    return {
        "format": metadata["format-version"],
        "columns": list(columns(current)),
        "partitioned by": [
            f"{part['field-id']} {part['name']}: {part['transform']} of {names[part['source-id']]}"
            for part in spec["fields"]
        ],
        "sort orders": [order["fields"] for order in metadata["sort-orders"]],
    }


def view(metadata: Mapping[str, Any]) -> dict[str, Any]:
    version = by_id(metadata["versions"], "version-id", metadata["current-version-id"])
    (representation,) = version["representations"]
    return {
        "columns": list(columns(by_id(metadata["schemas"], "schema-id", version["schema-id"]))),
        "dialect": representation["dialect"],
        "sql": wrap(" ".join(representation["sql"].split()), width=80),  # not its white space
    }


def by_id(listed: list[Any], name: str, wanted: int) -> Any:
    return next(item for item in listed if item[name] == wanted)


def columns(struct: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per column, in order: field id, name, type, comment."""
    for field in struct["fields"]:
        null = " not null" if field["required"] else ""
        comment = f" -- {field['doc']}" if "doc" in field else ""
        yield f"{field['id']} {field['name']} {type_of(field['type'])}{null}{comment}"


def type_of(kind: Any) -> str:
    """Return a type with all that is in it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return f"struct<{', '.join(columns(kind))}>"
    parts = [part for part in ("element", "key", "value") if part in kind]
    inner = [f"{kind[f'{part}-id']} {part} {type_of(kind[part])}" for part in parts]
    return f"{kind['type']}<{', '.join(inner)}>"
