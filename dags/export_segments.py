"""Write a topic's tables as the segment files of a broker's log directory, to restore from them.

The files are of format v2 and hold what the tables hold: records, delete horizons, transaction
markers, segments. Nothing changes in the lake. The target is filled as a whole or not at all; one
that holds other files is refused. docs/restore.md says how a broker takes it over.

[Its form](plugin/ebbtide/ebbtide/forms/export_segments) suggests topics and partitions.
"""

from airflow.sdk import Param, chain, dag

from ebbtide.log.settings.credentials import WITHOUT_CREDENTIALS
from ebbtide.orchestration.handover import verdict
from ebbtide.orchestration.house import Purpose, house, like, topic
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "export_segments"


@dag(
    schedule=None,
    **house(__doc__, Purpose.RECOVER),
    params={
        "topic": topic(),
        "partitions": Param(
            None,
            type=["null", "array"],
            items={"type": "integer", "minimum": 0},
            minItems=1,
            title="Partitions",
            description="A list such as [0, 2]; empty means all.",
        ),
        "target": Param(
            "",
            type="string",
            minLength=1,
            **like(WITHOUT_CREDENTIALS, "a path or URI without a user's name or password"),
            title="Target",
            description="A directory to be, on a path or URI that every Spark worker writes to.",
        ),
    },
)
def export_segments() -> None:
    chain(
        EbbtideJobOperator(
            task_id=JOB,
            job=JOB,
            topics=["{{ params.topic }}"],
            options={"partitions": "--partition", "target": "--target"},
        ),
        verdict([JOB]),
    )


export_segments()
