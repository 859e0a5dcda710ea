"""Brokers that nobody runs: what an error says, and what the log is spared."""

import json

import pytest

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import UnavailableError
from ebbtide.settings.upstream import CONNECTIONS
from tests.ports import free_port

ANSWER_MS = 500  # for so long a request is tried; nobody answers


def test_the_error_has_the_address_and_the_cause_and_the_log_none_of_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv(CONNECTIONS, json.dumps({"main": {"bootstrap.servers": address}}))
    message = (
        rf"^expected the brokers of connection 'main' at {address} to answer, found .*"
        rf"{address} failed: Connection refused.*\. Run it again once the brokers can be reached$"
    )
    with pytest.raises(UnavailableError, match=message):
        LiveTopic.connect("main", "t", ANSWER_MS)
    output = capfd.readouterr()
    assert "Connection refused" not in output.err + output.out
