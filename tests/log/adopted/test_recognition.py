"""Layouts are recognised by their schemas, and say which of Kafka's rules hold."""

from dataclasses import replace

import pytest

from ebbtide.errors import ConfigurationError, NotCoveredError
from ebbtide.layouts.layout import Choices, Columns, Layout, NamedLayout
from ebbtide.layouts.recognition import PROFILES, recognise
from ebbtide.specs.support import Exactness, rules_of
from tests.log.adopted.schemas import (
    AIVEN,
    AUTOMQ,
    AUTOMQ_DEBEZIUM,
    AUTOMQ_SCHEMALESS,
    CONNECT,
    CONNECT_FLAT,
    DEBEZIUM,
    MAPPED,
    OTHER,
    REDPANDA,
    REDPANDA_WITH_SCHEMA,
    SPARK,
    TABLEFLOW,
    TABLEFLOW_PORTABLE,
    Schema,
)


@pytest.mark.parametrize(
    ("schema", "choices", "profile", "names"),
    [
        pytest.param(
            SPARK,
            Choices(),
            "spark_source",
            "partition offset timestamp key topic value",
            id="Spark",
        ),
        pytest.param(
            REDPANDA,
            Choices(),
            "redpanda",
            "redpanda.partition redpanda.offset redpanda.timestamp redpanda.key - value",
            id="Redpanda",
        ),
        pytest.param(
            REDPANDA_WITH_SCHEMA,
            Choices(),
            "redpanda",
            "redpanda.partition redpanda.offset redpanda.timestamp redpanda.key -",
            id="Redpanda with a schema",
        ),
        pytest.param(
            CONNECT,
            Choices(key="id"),
            "connect_sink",
            "_kafka_metadata.partition _kafka_metadata.offset _kafka_metadata.timestamp id "
            "_kafka_metadata.topic",
            id="Connect",
        ),
        pytest.param(
            CONNECT_FLAT,
            Choices(key="id"),
            "connect_sink",
            "_kafka_metadata_partition _kafka_metadata_offset _kafka_metadata_timestamp id "
            "_kafka_metadata_topic",
            id="Connect, flat",
        ),
        pytest.param(
            DEBEZIUM,
            Choices(),
            "connect_sink",
            "_kafka_metadata.partition _kafka_metadata.offset _kafka_metadata.timestamp _cdc.key "
            "_kafka_metadata.topic",
            id="Connect with Debezium",
        ),
        pytest.param(
            TABLEFLOW,
            Choices(),
            "tableflow",
            "$$partition $$offset $$timestamp $$raw-key $$topic $$raw-value side",
            id="Tableflow",
        ),
        pytest.param(
            TABLEFLOW,
            Choices(value="$$raw-value"),
            "tableflow",
            "$$partition $$offset $$timestamp $$raw-key $$topic $$raw-value",
            id="Tableflow, by its bytes",
        ),
        pytest.param(
            TABLEFLOW_PORTABLE,
            Choices(),
            "tableflow",
            "cflt_metadata_partition cflt_metadata_offset cflt_metadata_timestamp "
            "cflt_metadata_raw_key - cflt_metadata_raw_value value",
            id="Tableflow with portable names",
        ),
        pytest.param(
            AIVEN,
            Choices(),
            "aiven",
            "kafka.partition kafka.offset kafka.timestamp key - value_raw value",
            id="Aiven",
        ),
        pytest.param(
            AUTOMQ,
            Choices(),
            "automq",
            "_kafka_metadata.partition _kafka_metadata.offset _kafka_metadata.timestamp "
            "_kafka_key -",
            id="AutoMQ",
        ),
        pytest.param(
            AUTOMQ_SCHEMALESS,
            Choices(),
            "automq",
            "_kafka_metadata.partition _kafka_metadata.offset _kafka_metadata.timestamp key - "
            "value",
            id="AutoMQ without a schema",
        ),
        pytest.param(OTHER, MAPPED, "explicit", "p o at k - v", id="any other"),
    ],
)
def test_a_layout_is_recognised(schema: Schema, choices: Choices, profile: str, names: str) -> None:
    columns = Columns.of(schema)
    found = recognise(columns, choices)
    assert found.profile.name == profile
    named = NamedLayout.of(Layout.parse(found.layout.to_json()), columns, "t")
    parts = [named.partition, named.offset, named.timestamp, named.key, named.topic, *named.values]
    assert [column.name if column else "-" for column in parts] == names.split()


@pytest.mark.parametrize("schema", [DEBEZIUM, AUTOMQ_DEBEZIUM], ids=["Connect", "AutoMQ"])
def test_debezium_marks_its_tombstones(schema: Schema) -> None:
    layout = recognise(Columns.of(schema), Choices()).layout
    assert layout.mark_text == "D"
    assert layout.mark is not None
    column = Columns.of(schema).with_id(layout.mark)
    assert column is not None
    assert column.name == "_cdc.op"


@pytest.mark.parametrize(
    ("schema", "choices", "refused"),
    [
        pytest.param(CONNECT, Choices(), {"supersede", "tombstones"}, id="no key"),
        pytest.param(CONNECT, Choices(key="id"), {"tombstones"}, id="no value"),
        pytest.param(DEBEZIUM, Choices(), set(), id="a mark"),
        pytest.param(SPARK, Choices(), set(), id="a value"),
        pytest.param(AUTOMQ, Choices(), {"tombstones"}, id="AutoMQ"),
        pytest.param(AUTOMQ_DEBEZIUM, Choices(), set(), id="AutoMQ with Debezium"),
        pytest.param(AUTOMQ_SCHEMALESS, Choices(), set(), id="AutoMQ without a schema"),
    ],
)
def test_a_rule_without_its_column_is_refused(
    schema: Schema, choices: Choices, refused: set[str]
) -> None:
    layout = recognise(Columns.of(schema), choices).layout
    names = {r.name.split()[0] for r in rules_of(layout) if r.exactness is Exactness.REFUSED}
    assert names == refused


def test_a_renamed_column_stays_the_same_and_a_dropped_one_is_named() -> None:
    layout = recognise(Columns.of(SPARK), Choices()).layout
    renamed = {**SPARK, "fields": [dict(field) for field in SPARK["fields"]]}
    renamed["fields"][0]["name"] = "id"
    found = NamedLayout.of(layout, Columns.of(renamed), "t")
    assert found.key is not None
    assert found.key.name == "id"
    del renamed["fields"][0]
    with pytest.raises(ConfigurationError, match="the column of 'key' was dropped"):
        NamedLayout.of(layout, Columns.of(renamed), "t")


def test_what_nobody_knows_is_refused_with_its_columns() -> None:
    with pytest.raises(NotCoveredError, match=r"found 'p', 'o', 'at', 'k', 'v'\. Name the columns"):
        recognise(Columns.of(OTHER), Choices())
    with pytest.raises(NotCoveredError, match="expected a column 'q'"):
        recognise(Columns.of(OTHER), MAPPED._replace(key="q"))
    with pytest.raises(NotCoveredError, match="one of the profiles"):
        recognise(Columns.of(SPARK), Choices(), "nobody's")


def test_a_damaged_layout_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"ebbtide\.layout"):
        Layout.parse('{"profile": "spark_source"}')


def test_a_layout_of_several_topics_is_read_back() -> None:
    layout = replace(recognise(Columns.of(SPARK), Choices()).layout, is_shared=True)
    assert Layout.parse(layout.to_json()) == layout


def test_profiles_have_a_name_of_their_own_and_a_source() -> None:
    assert len({profile.name for profile in PROFILES}) == len(PROFILES)
    assert all(profile.source and profile.writer for profile in PROFILES)
