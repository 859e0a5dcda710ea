"""docker-compose.yaml, brought up: two nights by its scheduler leave what they leave here."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from tests.compose.airflow_api import AirflowApi
from tests.compose.engine import Compose, Engine
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.services.cells import (
    CLUSTER,
    FIRST_NIGHT,
    REQUEST,
    SECOND_NIGHT,
    TOPICS,
    run_nights,
    without_ids,
)
from tests.services.process import free_port
from tests.services.rest_catalog import class_path

DESCRIBE = Path(__file__).with_name("describe_lake.py")
DAGS = len(list((ROOT / "dags").glob("*.py")))
NAMES = [f"{CLUSTER}.{topic}" for topic in TOPICS]
# What would mean something in a URL, in a shell and in a file of Java properties.
AWKWARD = r"p@ss:w/or d%\4#'"
UP_SECONDS, RUN_SECONDS = 300.0, 600.0
# Images and the folders of their stand-ins.
IMAGES = {
    "python:3.11-slim-bookworm": "python",
    "postgres:16": "postgres",
    "adobe/s3mock:5.1.0": "s3",
    "apache/iceberg-rest-fixture:1.11.0": "rest",
}
FOR_TRYING_OUT = ("rest", "s3")
ARRANGEMENTS = {
    "PostgreSQL x file": {},
    "REST x S3": {
        "COMPOSE_PROFILES": "rest,s3",
        "EBBTIDE_CATALOG": "rest",
        "EBBTIDE_FILES": "s3",
    },
}

pytestmark = pytest.mark.compose


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as running:
        yield running


@pytest.fixture(scope="module", params=ARRANGEMENTS)
def compose(
    request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compose]:
    """The services, from the image as it is built now, with nothing in their volumes."""
    settings = {
        "POSTGRES_PASSWORD": AWKWARD,
        "AIRFLOW_JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW_ADMIN_PASSWORD": AWKWARD,
        "AIRFLOW_FERNET_KEY": Fernet.generate_key().decode(),
        "AIRFLOW_PORT": str(free_port()),
        "SPARK_UI_PORT": str(free_port()),
        "EBBTIDE_BUILD_NETWORK": "host",
        "EBBTIDE_INGEST_CLUSTER": CLUSTER,
        **ARRANGEMENTS[request.param],
    }
    for image, stand_in in IMAGES.items():
        if stand_in not in FOR_TRYING_OUT or stand_in in settings.get("COMPOSE_PROFILES", ""):
            engine.provide(image, stand_in, class_path() if stand_in == "rest" else ())
    services = Compose(engine, ROOT, "ebbtide-test", settings)
    services("down", "--volumes", "--remove-orphans")
    services("build", "init")
    try:
        services("up", "--detach")
        yield services
    finally:
        output = tmp_path_factory.mktemp("compose") / "services.log"
        output.write_text(services("logs", "--no-color", "--timestamps"))
        print(f"what the services said is in {output}")
        services("down", "--volumes")


@pytest.fixture(scope="module")
def api(compose: Compose) -> AirflowApi:
    compose.wait_until_healthy(UP_SECONDS)
    url = f"http://127.0.0.1:{compose.settings['AIRFLOW_PORT']}"
    opened = AirflowApi(url, "admin", AWKWARD)
    opened.wait_for_dags(DAGS, UP_SECONDS)
    return opened


def test_two_nights_by_the_scheduler_one_with_a_killed_worker(
    compose: Compose, api: AirflowApi, tmp_path: Path
) -> None:
    api.must_succeed("ingest_segments", {"now": FIRST_NIGHT}, RUN_SECONDS)
    for name in NAMES:
        settings = {"topic": name, "set": ["ebbtide.max.delete.ratio=1"], "plan_only": False}
        api.must_succeed("configure_topic", settings, RUN_SECONDS)

    night = api.must_succeed("nightly_retention", night_at(FIRST_NIGHT), RUN_SECONDS)
    report = api.log("nightly_retention", night, "verdict")
    assert all(name in report for name in NAMES)
    page = json.loads(api.read("GET", "/ebbtide/api/topics"))
    assert [topic["name"] for topic in page["topics"]] == NAMES
    assert all(topic["last_night"] for topic in page["topics"])

    night = api.trigger("nightly_retention", night_at(SECOND_NIGHT))
    api.wait_until_running("nightly_retention", night, "clean_log", RUN_SECONDS)
    compose.kill("spark-worker")
    assert api.wait("nightly_retention", night, RUN_SECONDS) == "success"
    compose.wait_until_healthy(UP_SECONDS)

    (asked,) = REQUEST["topics"]
    offsets = {str(part["partition"]): part["offset"] for part in asked["partitions"]}
    conf = {"topic": asked["topic"], "offsets": offsets, "plan_only": False}
    api.must_succeed("delete_records", conf, RUN_SECONDS)

    lake = LakeSandbox(tmp_path / "home")
    run_nights(lake)
    there = json.loads(compose("exec", "-T", "scheduler", "python", "-c", DESCRIBE.read_text()))
    here = described(lake)
    assert sorted(there) == sorted(here) == NAMES
    for name in NAMES:
        assert there[name]["live rows"] == here[name]["live rows"], name
        assert comparable(there[name]["properties"]) == comparable(here[name]["properties"]), name


def night_at(now: str) -> dict[str, Any]:
    return {"now": now, "topics": NAMES, "allow_future_now": True}


def described(lake: LakeSandbox) -> dict[str, Any]:
    """What the script that runs in the container says of the embedded default."""
    environment = {**os.environ, **lake.environment()}
    command = [sys.executable, str(DESCRIBE)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    topics: dict[str, Any] = json.loads(said.stdout)
    return topics


def comparable(properties: dict[str, str]) -> dict[str, str]:
    """Without what each lake has of its own, and what only the jobs' own lake was given.

    Nor how many rows each segment's files hold: here snapshots expire, and segments merge, in both
    nights, there in the second alone.
    """
    kept = without_ids(properties)
    not_of_both = ("owner", "history.expire.max-snapshot-age-ms", "ebbtide.rows.")
    return {name: value for name, value in kept.items() if not name.startswith(not_of_both)}
