"""Keep a table that others write as a topic, which `nightly_retention` compacts from then on.

Run it with `plan_only` first: the task's log shows whose layout the table has, which column is what
of a record, and which of Kafka's rules hold for it. Columns are recognised for Spark's Kafka
source, Redpanda, AutoMQ and Iceberg's sink for Kafka Connect; name those that are not. A table that
holds several topics gives as many, `<namespace>.<table>@<topic>`.

[Its form](plugin/ebbtide/ebbtide/forms/adopt_table) suggests tables.
"""

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.handover import verdict
from ebbtide.orchestration.house import Purpose, house, like, optional, topic
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "adopt_table"
PARTS = ("partition", "offset", "timestamp", "key", "value", "topic")


@dag(
    schedule=None,
    **house(__doc__, Purpose.SETTINGS),
    params={
        "topic": topic(),
        **{
            f"{part}_column": optional(
                "string", f"Column of the {part}", "Its name; empty where it is recognised."
            )
            for part in PARTS
        },
        "tombstone": optional(
            "string",
            "Tombstone",
            "COLUMN=VALUE of rows that delete their key; empty: a null value does.",
            **like("^[^=]+=.*$", "COLUMN=VALUE, such as deleted=true"),
        ),
        "set": Param(
            ["kafka.cleanup.policy=compact"],
            type=["null", "array"],
            items={
                "type": "string",
                **like(r"^(kafka|ebbtide)\.[^=\s]+=.*$", "NAME=VALUE, of kafka.* and ebbtide.*"),
            },
            title="Set",
            description="Settings of the topic, one NAME=VALUE a line.",
        ),
        "plan_only": Param(
            True,
            type="boolean",
            title="Plan only",
            description="Show what the table is taken for; change nothing.",
        ),
    },
)
def adopt_table() -> None:
    columns = {f"{part}_column": f"--{part}-column" for part in PARTS}
    others = {"tombstone": "--tombstone", "set": "--set", "plan_only": "--plan-only"}
    chain(
        EbbtideJobOperator(
            task_id=JOB,
            job=JOB,
            topics=["{{ params.topic }}"],
            options={**columns, **others},
            needs_spark=True,
        ),
        verdict([JOB]),
    )


adopt_table()
