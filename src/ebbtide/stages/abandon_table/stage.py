"""abandon_table: take away what adopt_table has written; rows stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.catalog import find_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.state_table import drop_state
from ebbtide.iceberg.topics import set_properties
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.jvm import as_dict

_PREFIXES = ("ebbtide.", "kafka.")


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The properties of a table that ebbtide has set, and whether there is a state."""

    spark: SparkSession
    name: TopicName
    properties: Sequence[str]
    has_state: bool

    def outcome(self) -> JobOutcome:
        """Return what is taken away."""
        state = [self.name.state_table] if self.has_state else []
        return JobOutcome(topic={"properties": list(self.properties), "tables": state})


def plan_abandonment(spark: SparkSession, name: TopicName) -> Abandonment:
    """Find what adopting the table has left; NotCoveredError for a topic of ebbtide's own."""
    if table_exists(spark, name.batches_table):
        raise NotCoveredError(
            f"expected a table that was adopted, found {name}, a topic of ebbtide's own"
        )
    table = find_table(spark, name.records_table)
    of_table = {} if table is None else as_dict(spark, table.properties())
    mine = sorted(name for name in of_table if name.startswith(_PREFIXES))
    return Abandonment(spark, name, mine, table_exists(spark, name.state_table))


def execute_abandonment(plan: Abandonment) -> JobOutcome:
    """Remove the properties, then the state; either may be gone already."""
    spark, name = plan.spark, plan.name
    if plan.properties:
        changes: dict[str, str | None] = dict.fromkeys(plan.properties)
        remove = partial(set_properties, spark, name.records_table, changes)
        commit(Step.ABANDONED, remove)
    if plan.has_state:
        drop_state(spark, name)
    return plan.outcome()
