"""Airflow's API server with the pages, and Chromium to look at them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.browser.example_lake import fill
from tests.dags.conftest import airflow_database as airflow_database
from tests.lake_sandbox import EBBTIDE_HOME, LakeSandbox
from tests.plugins.conftest import known_dags as known_dags
from tests.services.process import free_port

# `make test-browser` puts axe-core there, and tests the pictures of the pages.
FOLDER = Path(os.environ.get("EBBTIDE_BROWSER", EBBTIDE_HOME / "browser"))
AXE = FOLDER / "axe.min.js"


@pytest.fixture(scope="session")
def example_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSandbox]:
    sandbox = LakeSandbox(tmp_path_factory.mktemp("lake") / "home")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in sandbox.environment().items():
            environment.setenv(name, value)
        fill(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def airflow_url(example_lake: LakeSandbox, known_dags: None) -> Iterator[str]:
    """Airflow's own application in a thread, on loopback."""
    import uvicorn
    from airflow.api_fastapi.app import cached_app

    port = free_port()
    config = uvicorn.Config(cached_app(apps="core"), "127.0.0.1", port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "the pages are looked at with Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def token(airflow_url: str) -> str:
    """The login of a user who may look and change nothing."""
    from airflow.api_fastapi.app import cached_app
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username="ann", role="VIEWER")
    signed: str = cached_app().state.auth_manager.generate_jwt(user)
    return signed


@pytest.fixture
def pictures() -> Path:
    """Where pictures of the pages are kept, to be looked at."""
    folder = FOLDER / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
