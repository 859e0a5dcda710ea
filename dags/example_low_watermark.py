"""Example: react when the records of a topic are removed from every replica.

An event of the topic's asset triggers this DAG. It prints the low watermarks of that event: no
replica has a record below them. Copy this file, name your topic, and delete the data that you
derived from those records.
"""

from typing import Any

from airflow.sdk import dag, get_current_context, task

from ebbtide.orchestration.handover import topic_asset
from ebbtide.orchestration.house import house
from ebbtide.specs.job_spec import Purpose

# Do not write Asset(name, "ebbtide://lake/log/flights") here: that clears the asset's extra.
TOPIC = topic_asset("log.flights")


@task
def print_low_watermarks() -> dict[str, int]:
    """Return the newest low watermark of each partition that has one; -1 means unknown."""
    events: list[Any] = get_current_context()["triggering_asset_events"][TOPIC]
    marks: dict[str, int] = {}
    for event in events:
        if (run := event.extra.get("undone_run")) is not None:
            print(f"{TOPIC.name}: run {run} was undone, records below its marks are restored")
        for partition, low_watermark in event.extra["low_watermarks"].items():
            if low_watermark >= 0:
                marks[partition] = low_watermark
    for partition, low_watermark in sorted(marks.items()):
        print(f"{TOPIC.name} partition {partition}: no replica has a record below {low_watermark}")
    return marks


@dag(
    schedule=[TOPIC],
    **house(__doc__, Purpose.EXAMPLE),
)
def example_low_watermark() -> None:
    print_low_watermarks()


example_low_watermark()
