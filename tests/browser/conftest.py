"""Airflow's API server with the pages, which Chromium looks at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.browser.example_lake import fill
from tests.dags.conftest import airflow_database as airflow_database
from tests.lake_sandbox import LakeSandbox
from tests.plugins.conftest import known_dags as known_dags
from tests.ports import free_port


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
def token(airflow_url: str) -> str:
    """The login of a user who may look and change nothing."""
    from airflow.api_fastapi.app import cached_app
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username="ann", role="VIEWER")
    signed: str = cached_app().state.auth_manager.generate_jwt(user)
    return signed
