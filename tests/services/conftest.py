from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox, contents, run_nights
from tests.services.postgresql import PostgreSql
from tests.services.rest_catalog import RestCatalog
from tests.services.s3_api import BUCKET, S3Api
from tests.services.scheduled_nights import described
from tests.services.spark_cluster import SparkCluster


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers keep their output."""
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="session")
def s3(directory: Path) -> Iterator[S3Api]:
    with S3Api(directory) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql(directory: Path) -> Iterator[PostgreSql]:
    server = PostgreSql(directory)
    try:
        with server:
            yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    with SparkCluster(directory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def embedded_lake(tmp_path_factory: pytest.TempPathFactory) -> LakeSandbox:
    """The embedded default after two nights."""
    lake = LakeSandbox(tmp_path_factory.mktemp("embedded") / "home")
    run_nights(lake)
    return lake


@pytest.fixture(scope="session")
def embedded(embedded_lake: LakeSandbox) -> dict[str, Any]:
    """What its tables and states hold, and what its runs said."""
    return contents(embedded_lake)


@pytest.fixture(scope="session")
def embedded_topics(embedded_lake: LakeSandbox) -> dict[str, Any]:
    """Its topics, as Airflow's side reads them."""
    return described(embedded_lake)


@contextmanager
def lake_on(
    request: pytest.FixtureRequest, home: Path, *, cell: str, owner: str = "nights"
) -> Iterator[CellSandbox]:
    """The lake of a cell, `CATALOG x FILES x SPARK`; its services start when they are needed.

    Each test says whose lake it is, and so has one of its own.
    """
    catalog, files, spark = cell.split(" x ")
    store = request.getfixturevalue("s3").settings() if files == "S3" else {}
    name = f"{owner}_{cell.replace(' x ', '_')}".lower()
    warehouse = f"s3://{BUCKET}/{name}" if files == "S3" else f"file://{home}/warehouse"
    cluster = request.getfixturevalue("spark_cluster").settings() if spark == "standalone" else {}
    if catalog == "SQLite":
        yield CellSandbox(home, {"warehouse": warehouse, **store}, cluster)
    elif catalog == "PostgreSQL":
        server: PostgreSql = request.getfixturevalue("postgresql")
        server.create(name)
        settings = {**server.settings(name), "warehouse": warehouse, **store}
        yield CellSandbox(home, settings, cluster)
    else:
        home.mkdir(parents=True)
        with RestCatalog(home, warehouse, store) as rest:
            yield CellSandbox(home, {**rest.settings(), **store}, cluster)
