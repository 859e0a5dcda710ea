"""`ebbtide.source`: who writes the log."""

from __future__ import annotations

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.settings.config import parse_config
from ebbtide.settings.upstream import SOURCE, Upstream


@pytest.mark.parametrize(
    ("text", "connection"), [("kafka:main.eu", "main.eu"), ("segments:file:///var/log", None)]
)
def test_an_upstream_is_a_connection_or_a_log_directory(text: str, connection: str | None) -> None:
    upstream = parse_config({SOURCE: text}).upstream
    assert isinstance(upstream, Upstream)
    assert (str(upstream), upstream.connection) == (text, connection)


@pytest.mark.parametrize("properties", [{}, {SOURCE: ""}, {SOURCE: "  "}])
def test_a_closed_archive_has_none(properties: dict[str, str]) -> None:
    assert parse_config(properties).upstream is None


@pytest.mark.parametrize("text", ["main", "kafka:", "http://x", ":x"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"kafka:<connection> or segments:<URI>"):
        parse_config({SOURCE: text})
