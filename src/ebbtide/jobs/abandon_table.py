"""abandon_table: stop managing an adopted table. No row changes.

The job removes ebbtide's properties and drops the state. Of a table with several topics, one topic
can be abandoned alone. Abandoning the last one, or the whole table, removes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from ebbtide.errors import HoldError, NotCoveredError
from ebbtide.iceberg.catalog import find_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.state_table import drop_state, topics_of_table
from ebbtide.iceberg.topics import set_properties
from ebbtide.layouts.layout import is_of_topic
from ebbtide.ledger.holds import that_keep
from ebbtide.moments import machine_clock
from ebbtide.runner.holds import standing_holds
from ebbtide.runner.job import Job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName

_PREFIXES = ("ebbtide.", "kafka.")


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The properties to remove from a table, and the topics whose states to drop."""

    spark: SparkSession
    name: TopicName
    properties: Sequence[str]
    topics: Sequence[TopicName]

    def outcome(self) -> JobOutcome:
        """Return the properties to remove and the state tables to drop."""
        states = [topic.state_table for topic in self.topics]
        return JobOutcome(topic={"properties": list(self.properties), "tables": states})


def plan_abandonment(spark: SparkSession, name: TopicName) -> Abandonment:
    """Find the properties and states that ebbtide has written for an adopted table.

    Raise NotCoveredError for one of ebbtide's own topics. Raise HoldError if a hold on the topic
    copies records, since no job would serve that hold any more.
    """
    if table_exists(spark, name.whole_table.batches_table):
        raise NotCoveredError(
            f"expected an adopted table, found {name}, one of ebbtide's own topics. Nothing was "
            "abandoned. Name an adopted table"
        )
    table = find_table(spark, name.records_table)
    of_table = {} if table is None else table.metadata.properties
    mine = sorted(name for name in of_table if name.startswith(_PREFIXES))
    topics = topics_of_table(spark, name)
    if name.in_table is not None and topics != [name]:
        mine = [property_name for property_name in mine if is_of_topic(name, property_name)]
        topics = [topic for topic in topics if topic == name]
    _check_not_held(spark, topics)
    return Abandonment(spark, name, mine, topics)


def _check_not_held(spark: SparkSession, topics: Sequence[TopicName]) -> None:
    for topic in topics:
        if holds := that_keep(standing_holds(spark, topic, machine_clock())):
            raise HoldError(
                f"expected no hold on {topic}, found {', '.join(map(str, holds))}. Nothing was "
                "abandoned. End the hold with hold_records first"
            )


def execute_abandonment(plan: Abandonment) -> JobOutcome:
    """Remove the properties, then drop the states. A killed run can be run again."""
    spark, name = plan.spark, plan.name
    if plan.properties:
        changes: dict[str, str | None] = dict.fromkeys(plan.properties)

        def remove() -> None:
            _check_not_held(spark, plan.topics)  # a hold may have been made since the plan
            set_properties(spark, name.records_table, changes)

        commit(Step.ABANDONED, remove)
    for topic in plan.topics:
        drop_state(spark, topic)
    return plan.outcome()


ABANDON_TABLE = Job(
    "abandon_table",
    lambda spark, name, _: plan_abandonment(spark, name),
    execute_abandonment,
    is_checked=False,
)
