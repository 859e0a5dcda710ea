"""Two nights by a real scheduler that dies with -9 in the second one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.services.airflow_services import Airflow
from tests.services.cells import CLUSTER, SAMPLE
from tests.services.conftest import lake_on
from tests.services.postgresql import PostgreSql
from tests.services.scheduled_nights import (
    assert_a_failed_night_says_why,
    assert_same_topics,
    described,
    run_scheduled_nights,
)
from tests.services.test_nights import SMOKE

pytestmark = pytest.mark.services


@pytest.mark.parametrize("cell", SMOKE)
def test_a_scheduler_that_is_killed_ends_the_night_when_it_is_there_again(
    cell: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgresql: PostgreSql,
    embedded_topics: dict[str, Any],
) -> None:
    source = str(SAMPLE)
    if " S3 " in cell:
        source = request.getfixturevalue("s3").upload(SAMPLE, f"logs/{tmp_path.name}")
    settings = {"EBBTIDE_INGEST_SOURCE": source, "EBBTIDE_INGEST_CLUSTER": CLUSTER}
    with (
        lake_on(request, tmp_path / "home", cell=cell, owner="scheduler") as lake,
        Airflow(lake, postgresql, settings) as airflow,
    ):
        run_scheduled_nights(airflow.api(), airflow.kill_scheduler)
        assert_a_failed_night_says_why(airflow.api())
        assert_same_topics(described(lake), embedded_topics)
