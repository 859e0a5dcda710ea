from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.s3_api import S3Api


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Api]:
    """An S3 API with one empty bucket."""
    with S3Api(Path(tmp_path_factory.mktemp("s3"))) as server:
        yield server
