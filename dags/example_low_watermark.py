"""An example of what may follow: runs when records of a topic are gone for good at every replica.

It is triggered by the asset of one topic and prints the low watermarks that came with it: below
them nothing is left in any replica. A copy of this file that names your topic is where you drop
what was derived from those records.
"""

from typing import Any

from airflow.sdk import dag, get_current_context, task

from ebbtide.orchestration.handover import topic_asset
from ebbtide.orchestration.house import house
from ebbtide.specs.job_spec import Purpose

# Declared by name and URI alone, "ebbtide://lake/log/flights", the asset would lose its extra.
TOPIC = topic_asset("log.flights")


@task
def print_low_watermarks() -> dict[str, int]:
    """Return the newest low watermark of each partition; -1, which says nothing, is left out."""
    events: list[Any] = get_current_context()["triggering_asset_events"][TOPIC]
    marks: dict[str, int] = {}
    for event in events:
        if (run := event.extra.get("undone_run")) is not None:
            print(f"{TOPIC.name}: run {run} was undone, so records below its marks are back")
        for partition, low_watermark in event.extra["low_watermarks"].items():
            if low_watermark >= 0:
                marks[partition] = low_watermark
    for partition, low_watermark in sorted(marks.items()):
        print(f"{TOPIC.name} partition {partition}: nothing is left below {low_watermark}")
    return marks


@dag(
    schedule=[TOPIC],
    **house(__doc__, Purpose.EXAMPLE),
)
def example_low_watermark() -> None:
    print_low_watermarks()


example_low_watermark()
