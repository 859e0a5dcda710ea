"""The pages in a browser: light and dark, phone and wide, without scripts, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.example_lake import ADOPTED, AUDIT, ERASED, FLIGHTS, ORDERS, nights
from tests.browser.running_airflow import FITS, PHONE, serious
from tests.lake_sandbox import LakeSandbox
from tests.orchestration.pages.many_topics import fill_nights, make_topics

pytestmark = pytest.mark.browser

WIDE = (1440, 900)
# Of the overview of so many topics: what a look may send in all.
TOPICS, PARTITIONS, MAX_BYTES = 500, 50, 1_000_000
NIGHT = quote(f"scheduled__{list(nights())[-1]:%Y-%m-%dT%H:%M:%S+00:00}", safe="")
PAGES = {
    "overview": "",
    "topic": f"topics/{FLIGHTS}",
    "topic-with-drift": f"topics/{ORDERS}",
    "topic-that-others-write": f"topics/{ADOPTED}",
    "run": f"runs/{NIGHT}?dag=nightly_retention",
    "run-of-a-topic": f"runs/{NIGHT}?dag=nightly_retention&topic={FLIGHTS}",
    "run-that-failed": f"runs/{NIGHT}?dag=nightly_retention&topic={ORDERS}",
    "dag": "dags/nightly_retention",
    "keys": "keys",
    "forms": "forms",
    "form-of-a-topic": f"forms/delete_records?topic={FLIGHTS}",
    "form-of-settings": f"forms/configure_topic?topic={ORDERS}&name=kafka.retention.ms",
    "form-of-keys": "forms/erase_keys",
    "form-of-stages": "forms/apply_retention",
    "form-of-an-ingest": "forms/ingest_topic",
    "form-of-an-export": f"forms/export_segments?topic={FLIGHTS}",
    "problem": "topics/log.none",
}


@pytest.fixture
def signed_in(chromium: Any, airflow_url: str, token: str) -> Iterator[Any]:
    """Makes pages of a browser that is logged in."""
    contexts = []

    def page(width: int = 1440, height: int = 900, theme: str = "light", **given: Any) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            base_url=airflow_url,
            **given,
        )
        context.add_cookies([{"name": "_token", "value": token, "url": airflow_url}])
        contexts.append(context)
        return context.new_page()

    yield page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_used_by_everybody(
    signed_in: Any, pictures: Path, name: str, size: tuple[int, int]
) -> None:
    page = signed_in(*size, bypass_csp=True)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"/ebbtide/{PAGES[name]}")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=pictures / f"{name}-{size[0]}-{theme}.png", full_page=True)
        assert problems == []
        assert page.evaluate(FITS)
        if theme == "light" or size == WIDE:  # contrast is that of the wide page
            assert serious(page) == []


def test_nothing_breaks_the_security_policy(signed_in: Any) -> None:
    page = signed_in()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    for path in PAGES.values():
        page.goto(f"/ebbtide/{path}")
    assert [text for text in messages if "Content Security Policy" in text] == []


def test_without_scripts_topics_are_searched_and_charts_are_there(signed_in: Any) -> None:
    page = signed_in(java_script_enabled=False)
    page.goto("/ebbtide/")
    page.get_by_label("Search topics").fill("AUDIT")
    page.get_by_role("button", name="Search").click()
    page.wait_for_load_state()  # the address changes before the page is read
    assert page.url.endswith("/ebbtide/?search=AUDIT")
    assert page.locator("table.topics tbody th a").all_inner_texts() == [AUDIT]
    page.goto(f"/ebbtide/topics/{FLIGHTS}")
    assert page.locator("figure.chart svg path.line").count() >= 3
    assert page.locator("svg.bar").count() == 6


def test_topics_are_searched_while_typing(signed_in: Any) -> None:
    page = signed_in()
    page.goto("/ebbtide/")
    page.get_by_label("Search topics").press_sequentially("flig")
    page.wait_for_url("**/ebbtide/?search=flig")
    assert page.locator("table.topics tbody th a").all_inner_texts() == [FLIGHTS]


def test_the_keyboard_skips_to_the_page(signed_in: Any) -> None:
    page = signed_in()
    page.goto("/ebbtide/")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


def test_a_key_is_explained_and_is_in_no_address(signed_in: Any, pictures: Path) -> None:
    page = signed_in(bypass_csp=True)
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(f"/ebbtide/topics/{FLIGHTS}")
    page.get_by_role("link", name="Find a key of this topic").click()
    page.get_by_label("Key").fill(ERASED)
    page.get_by_role("button", name="Find").click()
    assert page.locator("#result").inner_text() == f"2 records in {FLIGHTS}"
    assert "Offset 8,500 has a newer record of the key." in page.inner_text("main")
    page.screenshot(path=pictures / "key-found.png", full_page=True)
    assert serious(page) == []
    assert ERASED not in "".join(addresses)
    assert page.input_value("#key") == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pages_lie_in_airflows_own(signed_in: Any, pictures: Path, theme: str) -> None:
    page = signed_in(theme="light")
    page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    page.goto("/plugin/ebbtide", wait_until="networkidle")
    frame = page.frame_locator("iframe")
    frame.get_by_role("heading", name="Topics", exact=True).wait_for()
    page.screenshot(path=pictures / f"in-airflow-{theme}.png")
    assert frame.locator("html").get_attribute("data-theme") == theme
    frame.get_by_role("link", name=FLIGHTS).first.click()
    frame.get_by_role("heading", name=FLIGHTS).wait_for()
    page.wait_for_url(f"**/plugin/ebbtide/ebbtide/topics/{FLIGHTS}")
    page.screenshot(path=pictures / f"topic-in-airflow-{theme}.png")
    frame.get_by_role("link", name="Change settings").click()
    frame.get_by_role("heading", name="Change settings").wait_for()
    page.wait_for_url("**/plugin/ebbtide/ebbtide/forms/configure_topic**")


def test_many_topics_are_shown_within_bounds(
    signed_in: Any, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeSandbox(tmp_path / "home")
    for name, value in lake.environment().items():
        monkeypatch.setenv(name, value)
    make_topics(lake, TOPICS, PARTITIONS)
    fill_nights(lake, TOPICS, PARTITIONS, nights=7)
    page = signed_in()
    received: list[int] = []
    page.on("requestfinished", lambda sent: received.append(sum_of(sent.sizes())))
    page.goto("/ebbtide/")  # the first look reads the rows of all nights
    assert "1 to 50 of 500 topics" in page.inner_text("#shown")
    assert 0 < sum(received) <= MAX_BYTES
    page.goto("/ebbtide/?sort=removed")
    assert page.evaluate("() => document.scrollingElement.scrollHeight") < 5000
    page.screenshot(path=pictures / "overview-of-500.png")
    first = page.locator("table.topics tbody th a").first
    assert first.inner_text() == "log.t499"
    page.get_by_role("link", name="Next", exact=True).click()
    page.wait_for_url("**page=2**")
    assert first.inner_text() == "log.t449"


def sum_of(sizes: Mapping[str, int]) -> int:
    return sizes["responseBodySize"] + sizes["responseHeadersSize"]
