"""Two nights as Airflow's scheduler runs them, and what topics hold afterwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ebbtide.iceberg.in_flight import Merge
from ebbtide.state.topic_state import MERGE
from tests.lake_sandbox import LakeSandbox
from tests.services.airflow_api import AirflowApi
from tests.services.cells import CLUSTER, FIRST_NIGHT, REQUEST, SECOND_NIGHT, TOPICS, without_ids

DESCRIBE = Path(__file__).with_name("describe_lake.py")
NAMES = [f"{CLUSTER}.{topic}" for topic in TOPICS]


def run_scheduled_nights(api: AirflowApi, disturb: Callable[[], None]) -> None:
    """All jobs by their DAGs; `disturb` is called while the second night cleans."""
    api.must_succeed("ingest_segments", {"now": FIRST_NIGHT})
    for name in NAMES:
        settings = {"topic": name, "set": ["ebbtide.max.delete.ratio=1"], "plan_only": False}
        run_id = api.trigger("configure_topic", settings)
        api.approve_if_asked("configure_topic", run_id, "the sample's limits")
        state = api.wait("configure_topic", run_id)
        assert state == "success", api.states("configure_topic", run_id)

    night = api.must_succeed("nightly_retention", _night_at(FIRST_NIGHT))
    report = api.log("nightly_retention", night, "report_run")
    assert all(name in report for name in NAMES)
    page = api.read("GET", "/ebbtide/")
    assert re.findall(r'<th scope="row">\s*<a href="[^"]*">([^<]+)</a>', page) == NAMES
    assert page.count(f"/ebbtide/runs/{quote(night, safe='')}?dag=nightly_retention") >= len(NAMES)

    night = api.trigger("nightly_retention", _night_at(SECOND_NIGHT))
    api.wait_until("running", "nightly_retention", night, "clean_log")
    disturb()
    state = api.wait("nightly_retention", night)
    assert state == "success", api.states("nightly_retention", night)

    (asked,) = REQUEST["topics"]
    offsets = {str(part["partition"]): part["offset"] for part in asked["partitions"]}
    run_id = api.trigger("delete_records", {"topic": asked["topic"], "offsets": offsets})
    question = api.approve("delete_records", run_id, "tests")
    assert f"### {asked['topic']}" in question
    assert "Requested by **admin**" in question
    state = api.wait("delete_records", run_id)
    assert state == "success", api.states("delete_records", run_id)
    assert (api.note("delete_records", run_id) or "").startswith("Approved by admin (tests).")


def assert_a_failed_night_says_why(api: AirflowApi) -> None:
    """The note that the scheduler leaves on a run begins with the cause."""
    night = api.trigger("nightly_retention", {"topics": [f"{CLUSTER}.unknown"]})
    assert api.wait("nightly_retention", night) == "failed"
    cause = f"expected topics that have a table, found {CLUSTER}.unknown. The lake has "
    note = api.note("nightly_retention", night) or ""
    assert note.startswith(f"group_topics failed: RequestError: {cause}")


def _night_at(now: str) -> dict[str, Any]:
    return {"now": now, "topics": NAMES, "allow_future_now": True}


def described(lake: LakeSandbox) -> dict[str, Any]:
    """Each topic's settings, state and live rows."""
    environment = {**os.environ, **lake.environment()}
    command = [sys.executable, str(DESCRIBE)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    topics: dict[str, Any] = json.loads(process.stdout)
    return topics


def assert_same_topics(there: dict[str, Any], here: dict[str, Any]) -> None:
    """Compare two lakes' topics as `described`; here the jobs ran without a scheduler."""
    assert sorted(there) == sorted(here) == NAMES
    for name in NAMES:
        assert there[name]["live rows"] == here[name]["live rows"], name
        assert _comparable(there[name]["properties"]) == _comparable(here[name]["properties"]), name


def _comparable(properties: dict[str, str]) -> dict[str, str]:
    """Without what each lake has of its own, and what only the jobs' own lake was given.

    Nor how many rows each segment's files hold, nor a merge that is done: by a scheduler snapshots
    expire, and segments merge, in both nights, without one in the second alone.
    """
    kept = without_ids(properties)
    if MERGE in kept and not Merge.parse(kept[MERGE]).groups:
        del kept[MERGE]
    not_of_both = ("owner", "history.expire.max-snapshot-age-ms", "ebbtide.rows.")
    return {name: value for name, value in kept.items() if not name.startswith(not_of_both)}
