"""An Airflow that runs our DAGs on a lake with the sample log, and the people who log in to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.browser.chromium import AXE
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import started
from tests.services.airflow_services import LOGIN, Airflow
from tests.services.cells import CLUSTER, FIRST_NIGHT, SAMPLE
from tests.services.postgresql import PostgreSql
from tests.waiting import PATIENCE_S

PASSWORD = "a-password"
PEOPLE = {"vera": "viewer", "ann": "user", "bob": "op", "adam": "admin"}
CONNECTION = "kafka_of_the_sample"
PHONE, WIDE = (390, 844), (1280, 900)
RUN_SECONDS = PATIENCE_S


@contextmanager
def airflow_with_people(directory: Path) -> Iterator[tuple[Airflow, LakeSandbox]]:
    """Start PostgreSQL and Airflow's four components; each plan needs a second pair of eyes.

    The sample log is ingested meanwhile.
    """
    lake = LakeSandbox(directory / "home")
    source = ("--source", str(SAMPLE), "--cluster", CLUSTER, "--now", FIRST_NIGHT)
    passwords = directory / "passwords.json"
    passwords.write_text(json.dumps(dict.fromkeys(PEOPLE, PASSWORD) | dict([LOGIN])))
    users = [f"{LOGIN[0]}:admin", *(f"{name}:{role}" for name, role in PEOPLE.items())]
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(users),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "EBBTIDE_FOUR_EYES": "true",
    }
    server = PostgreSql(directory)
    try:
        with server:
            airflow = Airflow(lake, server, settings)
            ingest = started(lake, "ingest_segments", *source)
            with airflow:
                connection = {"connection_id": CONNECTION, "conn_type": "kafka"}
                api = airflow.api()  # once it knows all DAGs
                api.read("POST", "/api/v2/connections", connection)
                said, _ = ingest.communicate()
                assert ingest.returncode == 0, said
                yield airflow, lake
                airflow.components["dag-processor"].kill()  # asked to end, it takes ten seconds
    finally:
        server.remove()


class Person:
    """Somebody with a browser of their own, who logs in as everybody does.

    `login` is what their browser has kept of an earlier login.
    """

    def __init__(
        self, browser: Any, url: str, name: str, login: Any = None, password: str = PASSWORD
    ) -> None:
        self.name = name
        self.password = password
        self.context = browser.new_context(
            storage_state=login,
            viewport=_size(WIDE),
            color_scheme="light",
            base_url=url,
            bypass_csp=True,  # for axe-core, which is put into the page
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(RUN_SECONDS * 1000)
        self.addresses: list[str] = []
        self.page.on("request", lambda request: self.addresses.append(request.url))

    def log_in(self) -> Person:
        """Give name and password to Airflow's own page."""
        self.page.goto("/auth/login")
        self.page.get_by_label("Username").fill(self.name)
        self.page.get_by_label("Password").fill(self.password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: not urlsplit(url).path.startswith("/auth"))
        return self

    def open(self, path: str) -> Any:
        """Look at one of our pages."""
        self.page.goto(f"/ebbtide/{path}", wait_until="load")
        return self.page

    def press(self, button: str) -> Any:
        """Press a button of a form, and look at what it leads to."""
        self.page.get_by_role("button", name=button, exact=True).click()
        self.page.wait_for_load_state("load")
        return self.page

    def wait_for(self, text: str) -> None:
        """Look on until the page says so, which it does by itself."""
        self.page.get_by_text(text).first.wait_for(timeout=RUN_SECONDS * 1000)

    def in_both_themes(self, picture: Callable[[str], Path]) -> None:
        """Take a picture in light, in dark and on a phone, and let axe-core look at each."""
        for theme in ("light", "dark"):
            self.page.emulate_media(color_scheme=theme)
            self.page.screenshot(path=picture(theme))
            assert serious(self.page) == []
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size(_size(PHONE))
        self.page.wait_for_function(FITS)  # charts follow the width a moment later
        self.page.screenshot(path=picture("phone"), full_page=True)
        self.page.set_viewport_size(_size(WIDE))


# Whether all of a page is seen without scrolling sideways.
FITS = "() => document.scrollingElement.scrollWidth <= innerWidth"


def _size(pixels: tuple[int, int]) -> dict[str, int]:
    return {"width": pixels[0], "height": pixels[1]}


def serious(page: Any) -> list[str]:
    """What axe-core finds that keeps somebody from using the page."""
    page.add_script_tag(path=str(AXE)) if page.evaluate("() => !window.axe") else None
    results = page.evaluate("() => axe.run()")
    return [
        f"{violation['id']}: {violation['help']}: "
        f"{[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
