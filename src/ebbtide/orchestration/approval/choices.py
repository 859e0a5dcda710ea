"""What the form of retention_now chooses."""

from __future__ import annotations

from airflow.sdk import get_current_context, task

from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.driver.causes import explained
from ebbtide.orchestration.handover import chosen_topics

STAGES = ("clean_log", "expire_segments", "expire_snapshots")


@task
def choose_topics() -> list[str]:
    """Return the topics of the form that are enabled, or all of them."""
    context = get_current_context()
    with explained(context), open_lake() as lake:
        return chosen_topics(lake, context["params"].get("topics"))


@task
def choose_stages() -> list[str]:
    """Return the stages of the form, in the order of a night."""
    chosen = get_current_context()["params"]["stages"]
    return [stage for stage in STAGES if stage in chosen]
