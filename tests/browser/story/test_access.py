"""Who may do what: everybody with a login sees all pages, and Airflow's roles tell the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.running_airflow import CONNECTION, PEOPLE, Person

pytestmark = pytest.mark.browser

AUDIT, FLIGHTS = "sample.audit", "sample.flights"


@pytest.mark.parametrize(("name", "role"), PEOPLE.items())
def test_each_role_logs_in_and_does_what_airflow_lets_it(
    person: Callable[[str], Person], name: str, role: str
) -> None:
    somebody = person(name)
    page = somebody.open("")
    assert page.locator("table.topics tbody th a").all_inner_texts() == [AUDIT, FLIGHTS]
    page = somebody.open(f"forms/delete_records?topic={AUDIT}&partition=0&offset=10")
    may_start, may_see_connections = role != "viewer", role in ("op", "admin")
    button = page.get_by_role("button", name="Plan only")
    assert button.is_enabled() is may_start
    refusal = f"{name} may read this page, but not start runs of delete_records."
    assert (refusal in page.inner_text("main")) is not may_start
    suggested = page.locator("#list-connections option")
    values = [option.get_attribute("value") for option in suggested.all()]
    assert values == ([CONNECTION] if may_see_connections else [])
    if not may_start:  # nor by a page that somebody has changed
        button.evaluate("button => { button.disabled = false; }")
        page = somebody.press("Plan only")
        assert page.locator("#problem").count() == 1
        assert "/runs/" not in page.url


def test_airflows_page_of_a_dag_leads_to_its_form(person: Callable[[str], Person]) -> None:
    page = person("ann").page
    page.goto("/dags/delete_records")
    page.get_by_role("button", name="Dag Docs").click()
    with page.context.expect_page() as opened:  # Airflow opens links of docs beside itself
        page.get_by_role("link", name="Its form").click()
    frame = opened.value.frame_locator("iframe")
    frame.get_by_role("heading", name="Delete records").wait_for()
