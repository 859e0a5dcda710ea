from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox
from tests.services.s3_api import BUCKET, S3Api
from tests.stores.nights import COMPACT, MESSAGES
from tests.tables.logs import write_log


@pytest.fixture(scope="session", autouse=True)
def plain_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Begin Spark without a store: the settings that it begins with hold for all lakes."""
    assert LakeSandbox(tmp_path_factory.mktemp("plain") / "home").session


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Api]:
    """An S3 API with one empty bucket."""
    with S3Api(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def on_s3(request: pytest.FixtureRequest, s3: S3Api, tmp_path: Path) -> LakeSandbox:
    """A lake whose files lie in the store; a parameter names another scheme than `s3`."""
    scheme = getattr(request, "param", "s3")
    settings = {"warehouse": f"{scheme}://{BUCKET}/{tmp_path.name}", **s3.settings()}
    return CellSandbox(tmp_path / "on-s3", settings)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with superseded records and a tombstone."""
    return write_log(tmp_path / "log", "t", MESSAGES, COMPACT)
