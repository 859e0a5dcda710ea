"""The index of scenarios names tests that exist, and its page is the newest."""

from tests.conformance import PAGE, missing, page


def test_every_test_it_names_is_there() -> None:
    assert missing() == []


def test_the_page_is_what_the_index_says() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.conformance"
