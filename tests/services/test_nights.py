"""Two nights on real services leave, row for row, what they leave on the embedded default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.services.cells import SAMPLE, contents, run_nights
from tests.services.conftest import lake_on

SMOKE = ("PostgreSQL x file x standalone", "REST x S3 x local")
ALL = tuple(
    f"{catalog} x {files} x {spark}"
    for catalog in ("PostgreSQL", "REST")
    for files in ("file", "S3")
    for spark in ("local", "standalone")
)
CELLS = ALL if os.environ.get("EBBTIDE_SERVICES") == "all" else SMOKE

pytestmark = pytest.mark.services


@pytest.mark.parametrize("cell", CELLS)
def test_two_nights_leave_what_they_leave_on_the_embedded_default(
    cell: str, request: pytest.FixtureRequest, tmp_path: Path, embedded: dict[str, Any]
) -> None:
    source = str(SAMPLE)
    if " S3 " in cell:  # as its files are, so is its source in the store
        source = request.getfixturevalue("s3").upload(SAMPLE, f"logs/{tmp_path.name}")
    with lake_on(request, tmp_path / "home", cell=cell) as lake:
        run_nights(lake, source)
        assert contents(lake) == embedded
