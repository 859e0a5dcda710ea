"""Chromium, and where it leaves its pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake_sandbox import EBBTIDE_HOME

# `make test-browser` puts axe-core there, and tests the pictures of the pages.
FOLDER = Path(os.environ.get("EBBTIDE_BROWSER", EBBTIDE_HOME / "browser"))
AXE = FOLDER / "axe.min.js"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "the pages are looked at with Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def pictures() -> Path:
    """Where pictures of the pages are kept, to be looked at."""
    folder = FOLDER / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
