"""Set a topic's retention configuration; every value is checked before anything changes.

Names and ranges are Kafka's, and without an explicit limit nothing is ever removed. `plan` shows
what the next night would remove; where it would remove something, `approve` asks before the
settings are set. Every other property goes into the two lists: `kafka.*` are Kafka's
configurations, `ebbtide.*` are ours, and one is Iceberg's, `history.expire.max-snapshot-age-ms`.

[Its form](plugin/ebbtide/ebbtide/forms/configure_topic) suggests topics and settings.
"""

from typing import Any

from airflow.sdk import Param, dag

from ebbtide.log.state.properties import MAX_SNAPSHOT_AGE
from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.house import Purpose, asking, like, topic

OPTIONS = {"set": "--set", "unset": "--unset", "from_source": "--from-source"}
NAME = r"((kafka|ebbtide)\.[^=\s]+|" + MAX_SNAPSHOT_AGE.replace(".", r"\.") + ")"

NAMES = f"kafka.*, ebbtide.* and {MAX_SNAPSHOT_AGE}"


def lines(title: str, description: str, form: dict[str, Any]) -> Param:
    """Return a Param of any number of lines."""
    return Param(
        None,
        type=["null", "array"],
        items={"type": "string", **form},
        title=title,
        description=description,
    )


@dag(
    schedule=None,
    **asking(__doc__, Purpose.SETTINGS),
    params={
        "topic": topic(),
        "set": lines(
            "Set",
            "One NAME=VALUE a line, such as kafka.cleanup.policy=compact,delete.",
            like(f"^{NAME}=.*$", f"NAME=VALUE, of {NAMES}"),
        ),
        "unset": lines(
            "Unset",
            "One NAME a line: back to the default.",
            like(f"^{NAME}$", f"a NAME, of {NAMES}"),
        ),
        "from_source": Param(
            False,
            type="boolean",
            title="From source",
            description="Take over every setting that the topic's brokers have differently.",
        ),
        "plan_only": Param(
            True,
            type="boolean",
            title="Plan only",
            description="Show what would change and what the next night would remove.",
        ),
    },
)
def configure_topic() -> None:
    asked = {"topics": ["{{ params.topic }}"], "options": OPTIONS, "is_live": True}
    plan_and_approve("configure_topic", asked=asked)


configure_topic()
