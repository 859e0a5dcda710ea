"""The table of layouts and rules in docs/layouts.md says what the code says."""

import pytest

from docs.generate import DOCS
from ebbtide.layouts.layout import Choices, Columns
from ebbtide.layouts.recognition import PROFILES, recognise
from ebbtide.specs.support import rules_of
from tests.log.adopted.schemas import (
    AUTOMQ,
    AUTOMQ_DEBEZIUM,
    AUTOMQ_SCHEMALESS,
    CONNECT,
    DEBEZIUM,
    MAPPED,
    OTHER,
    REDPANDA,
    REDPANDA_WITH_SCHEMA,
    SPARK,
    Schema,
)

RULES = (
    "supersede by key",
    "tombstones and delete horizons",
    "segments",
    "retention by size, time and event time",
    "DeleteRecords",
)


def rows() -> list[list[str]]:
    """The cells of the page's table, without its title."""
    _, _, after = (DOCS / "layouts.md").read_text().partition("## Layouts × rules\n")
    lines = [line for line in after.partition("\n\nEach layout's")[0].splitlines() if "|" in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize(
    ("number", "schema", "choices"),
    [
        pytest.param(0, SPARK, Choices(), id="Spark"),
        pytest.param(1, REDPANDA, Choices(), id="Redpanda"),
        pytest.param(2, REDPANDA, Choices(), id="Redpanda's dead letters"),
        pytest.param(3, REDPANDA_WITH_SCHEMA, Choices(), id="Redpanda with a schema"),
        pytest.param(4, CONNECT, Choices(key="id"), id="Connect"),
        pytest.param(5, DEBEZIUM, Choices(), id="Connect with Debezium"),
        pytest.param(6, AUTOMQ, Choices(), id="AutoMQ"),
        pytest.param(7, AUTOMQ_DEBEZIUM, Choices(), id="AutoMQ with Debezium"),
        pytest.param(8, AUTOMQ_SCHEMALESS, Choices(), id="AutoMQ without a schema"),
        pytest.param(9, OTHER, MAPPED, id="any other"),
    ],
)
def test_each_cell_says_how_the_rule_holds(number: int, schema: Schema, choices: Choices) -> None:
    found = recognise(Columns.of(schema), choices)
    layout, *cells = rows()[number]
    assert f"(`{found.profile.name}`)" in layout
    exactness = {rule.name: rule.exactness for rule in rules_of(found.layout)}
    for rule, cell in zip(RULES, cells, strict=True):
        assert cell.startswith(exactness[rule]), rule
        assert len(cell) > len(exactness[rule]), "a reason"


def test_each_profile_has_a_row_where_its_tables_may_be_written_and_elsewhere_if_not() -> None:
    table = "".join(layout for layout, *_ in rows())
    copied = (DOCS / "ingest_table.md").read_text()
    assert len(rows()) == 10
    for profile in PROFILES:
        name = f"(`{profile.name}`)"
        assert (name in table, f"{name}:" in copied) == (
            not profile.read_only,
            bool(profile.read_only),
        )
