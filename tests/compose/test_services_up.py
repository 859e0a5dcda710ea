"""docker-compose.yaml, brought up: two nights by its scheduler leave what they leave here."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.compose.engine import Compose, Engine
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.ports import free_port
from tests.services.airflow_api import AirflowApi
from tests.services.cells import CLUSTER, run_nights
from tests.services.rest_catalog import class_path
from tests.services.scheduled_nights import (
    DESCRIBE,
    assert_same_topics,
    described,
    run_scheduled_nights,
)
from tests.waiting import PATIENCE_S

DAGS = len(list((ROOT / "dags").glob("*.py")))
# What would mean something in a URL, in a shell and in a file of Java properties.
AWKWARD = r"p@ss:w/or d%\4#'"
UP_SECONDS = PATIENCE_S
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
        "EBBTIDE_DRIVER_ROWS": "0",  # the workers do all of it, small as it is
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
    opened.wait_for_dags(DAGS)
    return opened


def test_two_nights_by_the_scheduler_one_with_a_killed_worker(
    compose: Compose, api: AirflowApi, tmp_path: Path
) -> None:
    run_scheduled_nights(api, lambda: compose.kill("spark-worker"))
    compose.wait_until_healthy(UP_SECONDS)
    lake = LakeSandbox(tmp_path / "home")
    run_nights(lake)
    there = json.loads(compose("exec", "-T", "scheduler", "python", "-c", DESCRIBE.read_text()))
    assert_same_topics(there, described(lake))
