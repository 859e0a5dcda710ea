"""`ebbtide.replicas`, and what a replica's state becomes when it follows its primary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import ConfigurationError
from ebbtide.kafka.low_watermarks import (
    is_behind,
    is_up_to_date,
    settings_to_follow,
    state_after,
    state_before,
)
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import LiveReplica, TableReplica, parse_replicas
from ebbtide.state.deletes import UNSEEN, Deletes, Stage, pending
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import NEVER, PartitionState

NAME = "ebbtide.replicas"


def test_replicas_are_namespaces_of_catalogs_and_live_topics() -> None:
    assert parse_replicas(NAME, "") == ()
    assert parse_replicas(NAME, "other.log, kafka:main.eu ,lake.copy-2") == (
        TableReplica("other", "log"),
        LiveReplica("main.eu"),
        TableReplica("lake", "copy-2"),
    )
    assert str(TableReplica("other", "log")) == "other.log"
    assert str(LiveReplica("main")) == "kafka:main"


def test_a_replica_has_its_primarys_topic_in_its_own_namespace() -> None:
    replica = TableReplica("other", "eu").of(TopicName("log", "a.b"))
    assert replica == TopicName("eu", "a.b", "other")
    assert str(replica) == "other:eu.a.b"
    assert TopicName.parse(str(replica)) == replica
    assert replica.records_table == "`other`.`eu`.`a.b`"
    assert replica.batches_table == "`other`.`eu_batches`.`a.b`"
    assert str(TableReplica("lake", "eu").of(TopicName("log", "t"))) == "eu.t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log", "expected <catalog>.<namespace> or kafka:<connection> for each replica"),
        (".log", "expected <catalog>.<namespace> or kafka:<connection> for each replica"),
        ("kafka:", "expected <catalog>.<namespace> or kafka:<connection> for each replica"),
        ("other.log,", "expected <catalog>.<namespace> or kafka:<connection> for each replica"),
        ("other.a.b", "expected a cluster name of up to 249"),
        ("other.log_batches", "expected a cluster name of up to 249"),
        ("0.5", "expected the name of a catalog, found the number 0, in ebbtide.replicas = '0.5'"),
        ("other.log,other.log", "expected each replica once in ebbtide.replicas"),
    ],
)
def test_what_is_no_replica_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_replicas(NAME, text)


def test_settings_follow_and_state_does_not() -> None:
    primary = {
        "kafka.retention.ms": "5",
        "kafka.topic.id": "x",
        "ebbtide.clean.without.new.data": "false",
        "ebbtide.replicas": "other.log",
        "ebbtide.round": "{}",
        "ebbtide.append": "[0]",
        "ebbtide.merge": "{}",
        "ebbtide.state.0.log-end-offset": "7",
        "ebbtide.enabled": "false",
        "write.format.default": "parquet",
    }
    replica = {"kafka.retention.ms": "6", "kafka.retention.bytes": "1", "ebbtide.replica.of": "u"}
    changes = settings_to_follow(primary, replica)
    assert changes == {
        "kafka.retention.ms": "5",
        "kafka.retention.bytes": None,
        "kafka.topic.id": "x",
        "ebbtide.clean.without.new.data": "false",
    }
    after = {n: v for n, v in {**replica, **changes}.items() if v is not None}
    assert settings_to_follow(primary, after) == {}


def state(start: int, end: int, *bases: int, **changes: Any) -> PartitionState:
    """A log with segments at `bases`, the time of each its base offset; all is marked."""
    return PartitionState(
        **{
            "log_start_offset": start,
            "log_end_offset": end,
            "first_dirty_offset": start,
            "first_unmarked_offset": end,
            "segments": tuple(SegmentStart(base, base) for base in bases),
            **changes,
        }
    )


PRIMARY = state(3, 20, 0, 5, 10, 15, max_event_time_ms=7, first_unmarked_offset=15)


def follow(replica: PartitionState | None) -> PartitionState:
    return state_after(state_before(replica, PRIMARY), PRIMARY)


def test_a_replica_gets_the_times_of_tombstones_from_its_primary() -> None:
    """Else one without nightly runs would never be overdue."""

    def counted(end: int, *groups: Deletes) -> PartitionState:
        deletes = (Deletes(Stage.COUNTED, UNSEEN, 0, end), *groups)
        return state(0, 20, 0, 10, first_unmarked_offset=end, deletes=deletes)

    old, due, gone, new = (
        Deletes(Stage.MARKED, 1, 2, 4),
        Deletes(Stage.HORIZON_SET, 2, 5, 12, until=7),
        Deletes(Stage.REMOVED, 3, 6, 7),
        Deletes(Stage.MARKED, 4, 13, 15),
    )
    primary = counted(15, old, due, gone, new)
    marked = due._replace(stage=Stage.MARKED)
    assert state_after(state(0, 8, 0), primary) == counted(15, old, marked, new)
    began = state(0, 8, 0, deletes=counted(8, gone).deletes)
    followed = state_after(began, primary)
    assert set(pending(followed.deletes)) == {gone, marked._replace(first_offset=8), new}
    assert state_after(followed, primary) == followed
    unmarked = state(0, 8, 0, first_unmarked_offset=4)  # it counts its tombstones itself
    assert state_after(unmarked, primary).deletes == ()
    assert state_after(state(0, 8, 0), PRIMARY).deletes == ()


def test_a_replica_that_does_not_know_its_primarys_name_is_behind() -> None:
    assert is_behind({}, {})
    assert not is_behind({}, {"ebbtide.replica.primary": "log.t"})


def test_a_new_replica_begins_in_the_segment_of_its_primarys_start() -> None:
    begun = state_before(None, PRIMARY)
    assert begun == state(3, 3, 0)
    assert state_after(begun, PRIMARY) == PRIMARY


def test_a_replica_that_is_behind_keeps_its_own_segments_and_cleaning() -> None:
    cleaning = {"first_dirty_offset": 5, "cleaned_at_ms": 9, "cleaned_end_offset": 8}
    after = follow(state(0, 8, 0, 4, **cleaning))
    assert after.segments == ((0, 0), (4, 4), (10, 10), (15, 15))
    assert (after.log_start_offset, after.log_end_offset) == (3, 20)
    assert (after.first_dirty_offset, after.cleaned_at_ms, after.cleaned_end_offset) == (5, 9, 8)
    assert after.max_event_time_ms == 7


@pytest.mark.parametrize(
    ("first_unmarked", "after"),
    [
        pytest.param(8, 15, id="all below was marked, so the primary's marks count"),
        pytest.param(7, 7, id="what was left is still to be marked"),
    ],
)
def test_marks_come_with_the_records(first_unmarked: int, after: int) -> None:
    assert follow(state(3, 8, 0, first_unmarked_offset=first_unmarked)).first_unmarked_offset == (
        after
    )


@pytest.mark.parametrize(
    ("end", "expired_end", "after"),
    [
        pytest.param(8, NEVER, 12, id="it gets batches that lack records"),
        pytest.param(8, 14, 14, id="and has some of its own"),
        pytest.param(20, NEVER, NEVER, id="it has them all already"),
    ],
)
def test_records_that_the_primary_has_lost_may_be_missing(
    end: int, expired_end: int, after: int
) -> None:
    primary = state(3, 20, 0, 5, 10, 15, expired_end_offset=12)
    replica = state(3, end, 0, 5, 10, 15, expired_end_offset=expired_end)
    assert state_after(replica, primary).expired_end_offset == after


def test_a_replica_that_ends_before_its_primarys_start_begins_anew_there() -> None:
    cleaning = {
        "first_dirty_offset": 2,
        "cleaned_at_ms": 9,
        "cleaned_end_offset": 2,
        "next_clean_ms": 4,
    }
    before = state_before(state(0, 2, 0, 1, max_event_time_ms=99, **cleaning), PRIMARY)
    assert before == state(
        3, 3, 0, cleaned_at_ms=9, cleaned_end_offset=NEVER, next_clean_ms=0, max_event_time_ms=99
    )
    assert state_after(before, PRIMARY).max_event_time_ms == 99


OFFSETS = st.lists(st.integers(0, 30), min_size=3, max_size=6, unique=True).map(sorted)


@given(OFFSETS, OFFSETS)
def test_a_replica_that_followed_lacks_nothing_and_no_offset_went_back(
    leader: list[int], follower: list[int]
) -> None:
    primary = state(leader[1], leader[-1], *leader[:-1])
    replica = state(follower[1], min(follower[-1], leader[-1]), *follower[:1])
    if replica.log_start_offset > replica.log_end_offset:
        end = replica.log_end_offset
        replica = state(end, end, min(end, follower[0]))
    before = state_before(replica, primary)
    after = state_after(before, primary)
    assert is_up_to_date({0: after}, {0: primary})
    assert after.log_end_offset == primary.log_end_offset
    assert after.log_start_offset >= max(replica.log_start_offset, primary.log_start_offset)
    bases = [base for base, _ in after.segments]
    assert bases == sorted(set(bases))
    assert bases[0] <= after.log_start_offset
    # What begins in the new part begins where the primary's segments do.
    assert {base for base in bases if base > before.active_segment} == {
        base
        for base, _ in primary.segments
        if base >= before.log_end_offset and base > before.active_segment
    }
