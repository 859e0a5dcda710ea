"""Copy the new rows of tables that others write, and nobody else may, to topics of ours.

Name the table and a topic once, with `plan_only` first: the task's log shows whose layout the table
has, and how many rows would come. Later runs know it: with no topic named, all that have been
copied to before get what is new. Scheduled when EBBTIDE_INGEST_TABLE_SCHEDULE holds a cron
expression. docs/adopt.md says what becomes of rows that come late.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_table) suggests tables and topics.
"""

from airflow.sdk import Param, dag

from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Purpose, house, like, now, optional, schedule, topics
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "ingest_table"
PARTS = ("partition", "offset", "timestamp", "key", "value", "headers")


@dag(
    schedule=schedule("EBBTIDE_INGEST_TABLE_SCHEDULE"),
    **house(__doc__, Purpose.INGEST),
    params={
        "topics": topics("all that have been copied to before"),
        "source": optional(
            "string",
            "Source",
            "The table, as [<catalog>:]<namespace>.<table>, for one topic; empty: as before.",
            **like(r"^[^.]+\..+$", "<namespace>.<table>, such as raw.orders"),
        ),
        "source_topic": optional(
            "string", "Topic of the source", "Which one to copy, where the table holds several."
        ),
        **{
            f"{part}_column": optional(
                "string",
                f"Column of the {part}",
                "Its name; empty where it is recognised.",
                section="Columns",
            )
            for part in PARTS
        },
        "tombstone": optional(
            "string",
            "Tombstone",
            "COLUMN=VALUE of rows that delete their key; empty: a null value does.",
            **like("^[^=]+=.*$", "COLUMN=VALUE, such as deleted=true"),
            section="Columns",
        ),
        "plan_only": Param(
            False,
            type="boolean",
            title="Plan only",
            description="Show what the table is taken for and what is new; change nothing.",
        ),
        "now": now("When the records count as received", section="Clock"),
    },
)
def ingest_table() -> None:
    columns = {f"{part}_column": f"--{part}-column" for part in PARTS}
    ingest = EbbtideJobOperator(
        task_id=JOB,
        job=JOB,
        options={
            "source": "--source",
            "source_topic": "--source-topic",
            "topics": "--topic",
            **columns,
            "tombstone": "--tombstone",
            "plan_only": "--plan-only",
        },
    )
    conclude([ingest], publishes=publishing(JOB, is_ingest=True), stages=[JOB])


ingest_table()
