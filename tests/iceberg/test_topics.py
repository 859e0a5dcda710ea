"""A topic as its table's properties describe it."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ebbtide.errors import CommitConflictError, NotCoveredError, StateError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, load, read_again
from ebbtide.lake.reader import open_lake
from ebbtide.layouts import topic as described
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import SOURCE
from ebbtide.state.topic_state import LAYOUT, LAYOUT_VERSION, parse_states, to_properties
from tests.lake_sandbox import LakeSandbox, state_of
from tests.tables.fixtures import Meanwhile


def test_however_many_partitions_are_asked_for_the_state_is_parsed_once(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties: dict[str, str] = {}
    for partition in range(3):
        properties |= to_properties(partition, state_of(log_start_offset=partition))
    parsed: list[int] = []
    monkeypatch.setattr(
        described, "parse_states", lambda *arguments: parsed.append(1) or parse_states(*arguments)
    )
    topic = Topic(TopicName("any", "t"), properties, sandbox.session)
    starts = [topic.offsets_of(p)["log_start_offset"] for p in topic.partitions]
    assert (starts, len(parsed)) == ([0, 1, 2], 1)


def test_a_state_that_moves_while_it_is_changed_is_changed_as_it_is_then(
    sandbox: LakeSandbox, cluster: str, meanwhile: Meanwhile
) -> None:
    """The faster one also removes what the other's commit builds on."""
    sandbox.topic(f"{cluster}.t", {0: state_of(log_start_offset=1)})
    topic = load(sandbox.session, TopicName(cluster, "t"))

    def raised(by: int, current: Topic) -> PropertyChanges:
        state = current.partitions[0]
        return to_properties(0, state.moved(log_start_offset=state.log_start_offset + by))

    for start in (1, 111):  # on a table's first snapshot, and on one that has a parent
        other = partial(compare_and_set, topic, Step.MARK_STATE, partial(raised, 10))
        meanwhile(Step.LOG_START_OFFSET, other)
        after = compare_and_set(topic, Step.LOG_START_OFFSET, partial(raised, 100))
        assert after.partitions[0].log_start_offset == start + 110
        assert read_again(topic).properties == after.properties


def test_settings_are_set_only_with_the_state_that_they_go_with(
    sandbox: LakeSandbox, cluster: str, meanwhile: Meanwhile
) -> None:
    """The faster one takes the work over: of the other neither state nor settings change."""
    sandbox.topic(f"{cluster}.t", {0: state_of(log_start_offset=1)})
    topic = load(sandbox.session, TopicName(cluster, "t"))

    def followed(source: str, current: Topic) -> PropertyChanges:
        if SOURCE in current.properties:
            raise CommitConflictError("another job was faster")
        state = current.partitions[0].moved(log_end_offset=200)
        return {**to_properties(0, state), SOURCE: source}

    other = partial(compare_and_set, topic, Step.INGEST_STATE, partial(followed, "segments:/b"))
    meanwhile(Step.FOLLOW_SETTINGS, other)
    with pytest.raises(CommitConflictError, match="another job was faster"):
        compare_and_set(topic, Step.INGEST_STATE, partial(followed, "segments:/a"))
    assert read_again(topic).properties[SOURCE] == "segments:/b"


def test_many_states_may_be_changed_at_a_time(sandbox: LakeSandbox, cluster: str) -> None:
    """No change is lost, and each is made once."""
    sandbox.topic(f"{cluster}.t", {0: state_of(log_start_offset=0)})
    topic = load(sandbox.session, TopicName(cluster, "t"))

    def raised(current: Topic) -> PropertyChanges:
        state = current.partitions[0]
        return to_properties(0, state.moved(log_start_offset=state.log_start_offset + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: compare_and_set(topic, Step.LOG_START_OFFSET, raised), range(20)))
    assert read_again(topic).partitions[0].log_start_offset == 20


def test_a_state_that_would_move_back_is_refused_by_topic_and_partition(
    sandbox: LakeSandbox, cluster: str
) -> None:
    sandbox.topic(f"{cluster}.t", {3: state_of(log_start_offset=7)})
    state = load(sandbox.session, TopicName(cluster, "t")).partitions[3]
    message = rf"^{cluster}\.t partition 3: expected log_start_offset at or above 7, found"
    with pytest.raises(StateError, match=message):
        state.moved(log_start_offset=6)


def test_a_topic_that_a_newer_version_has_worked_on_is_left_alone(
    sandbox: LakeSandbox, cluster: str
) -> None:
    sandbox.topic(f"{cluster}.t")
    name = TopicName(cluster, "t")
    newer = f"TBLPROPERTIES ('{LAYOUT}' = '{LAYOUT_VERSION + 1}')"
    sandbox.session.sql(f"ALTER TABLE {name.state_table} SET {newer}")
    with pytest.raises(NotCoveredError, match="Upgrade this one"):
        load(sandbox.session, name)
    with (
        open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake,
        pytest.raises(NotCoveredError, match="Upgrade this one"),
    ):
        lake.topic(str(name))
