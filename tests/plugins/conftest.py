"""Clients of Airflow's own application, by the role of the user who is logged in."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.dags.conftest import airflow_database
from tests.dags.runs import know_dags
from tests.orchestration.conftest import lake

__all__ = ["airflow_database", "lake"]


def api_server() -> Any:
    """Airflow's own application, with our plugin as it mounts it."""
    from airflow.api_fastapi.app import cached_app

    return cached_app(apps="core")


@pytest.fixture
def anonymous() -> Iterator[Any]:
    from fastapi.testclient import TestClient

    with TestClient(api_server()) as client:
        yield client


@pytest.fixture
def signed_in() -> Iterator[Callable[[str, str], Any]]:
    """Makes clients of a user with a role, who is known by the cookie of a login, as in a browser.

    They send what a browser does for a form of the same origin.
    """
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    app = api_server()
    with ExitStack() as stack:

        def client(name: str, role: str) -> Any:
            user = SimpleAuthManagerUser(username=name, role=role)
            opened = stack.enter_context(TestClient(app, follow_redirects=False))
            opened.cookies.set("_token", app.state.auth_manager.generate_jwt(user))
            opened.headers["Sec-Fetch-Site"] = "same-origin"
            return opened

        yield client


@pytest.fixture
def viewer(signed_in: Callable[[str, str], Any]) -> Any:
    """A client of a user who may look and change nothing."""
    return signed_in("ann", "VIEWER")


@pytest.fixture(scope="session")
def known_dags(airflow_database: None) -> None:
    """Airflow's database has our DAGs."""
    know_dags()
