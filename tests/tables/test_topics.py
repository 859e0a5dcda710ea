"""A topic as its table's properties describe it."""

import pytest

from ebbtide.log.names import TopicName
from ebbtide.log.state import parse_states, to_properties
from ebbtide.tables import topics
from ebbtide.tables.topics import Topic
from tests.lake_sandbox import LakeSandbox, state_of


def test_however_many_partitions_are_asked_for_the_state_is_parsed_once(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties: dict[str, str] = {}
    for partition in range(3):
        properties |= to_properties(partition, state_of(log_start_offset=partition))
    parsed: list[int] = []
    monkeypatch.setattr(topics, "parse_states", lambda of: parsed.append(1) or parse_states(of))
    topic = Topic(sandbox.session, TopicName("any", "t"), properties)
    starts = [topic.offsets_of(p)["log_start_offset"] for p in topic.partitions]
    assert (starts, len(parsed)) == ([0, 1, 2], 1)
