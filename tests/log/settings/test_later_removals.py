"""Which changes of settings let a later night remove more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.settings.config import SETTINGS
from ebbtide.specs.settings_changes import TIGHTENINGS, WITHOUT_REMOVAL, removing_more
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE
from tests.log.decided_retention import config_of, decided
from tests.log.retention_model import LOGS, NOW_MS
from tests.log.retention_model import SETTINGS as LIMITS

DAY_MS = 86_400_000
COMPACTED = {"kafka.cleanup.policy": "compact"}
DELETED = {"kafka.cleanup.policy": "delete"}
WITH_DEADLINE = {"kafka.cleanup.policy": "compact", "ebbtide.erase.deadline.ms": str(30 * DAY_MS)}
# The model reads one type of timestamps at a time: what records hold does not change.
SETS_OF_LIMITS = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in LIMITS.items() if "timestamp" not in name}
).map(lambda limits: {name: value for name, value in limits.items() if value is not None})


def test_each_setting_is_one_by_which_more_goes_or_one_by_which_nothing_does() -> None:
    assert set(SETTINGS) == {*TIGHTENINGS, *WITHOUT_REMOVAL}
    assert not set(TIGHTENINGS) & WITHOUT_REMOVAL


@given(
    before=SETS_OF_LIMITS,
    after=SETS_OF_LIMITS,
    log=st.sampled_from(sorted(LOGS)),
    later_ms=st.sampled_from([0, 50, 1_000, 4_000, 6_000, DAY_MS]),
)
def test_what_is_not_named_keeps_at_every_later_time_what_was_kept(
    before: dict[str, str], after: dict[str, str], log: str, later_ms: int
) -> None:
    changes: dict[str, str | None] = {**dict.fromkeys(before), **after}
    changes = {name: value for name, value in changes.items() if before.get(name) != value}
    if removing_more(before, changes):
        return
    (_, old), (_, new) = (
        decided(LOGS[log], config_of(settings), now_ms=NOW_MS + later_ms)
        for settings in (before, after)
    )
    assert set(old.offsets) <= set(new.offsets)
    assert new.start <= old.start


@pytest.mark.parametrize(
    ("before", "changes", "named"),
    [
        (COMPACTED, {"kafka.cleanup.policy": "compact,delete"}, True),
        ({}, {"kafka.cleanup.policy": "compact"}, True),
        ({"kafka.cleanup.policy": "compact,delete"}, {"kafka.cleanup.policy": "delete"}, False),
        (DELETED, {"kafka.retention.ms": "9"}, True),
        (DELETED, {"kafka.retention.ms": "-1"}, False),
        ({**DELETED, "kafka.retention.ms": "9"}, {"kafka.retention.ms": "10"}, False),
        ({**DELETED, "kafka.retention.ms": "9"}, {"kafka.retention.ms": None}, False),
        (COMPACTED, {"kafka.retention.ms": "9"}, False),
        (DELETED, {"kafka.retention.bytes": "9"}, True),
        (COMPACTED, {"kafka.delete.retention.ms": "0"}, True),
        (COMPACTED, {"kafka.delete.retention.ms": str(2 * DAY_MS)}, False),
        (DELETED, {"kafka.delete.retention.ms": "0"}, False),
        (COMPACTED, {"kafka.min.cleanable.dirty.ratio": "0.1"}, True),
        (COMPACTED, {"ebbtide.tombstone.header": "gone"}, True),
        (DELETED, {"ebbtide.tombstone.header": "gone"}, False),
        (DELETED, {"ebbtide.tombstone.explicit": "true"}, True),
        ({"ebbtide.replicas": "lake.copy"}, {"ebbtide.replicas": None}, True),
        (COMPACTED, {"ebbtide.erase.deadline.ms": str(30 * DAY_MS)}, True),
        (DELETED, {"ebbtide.erase.deadline.ms": str(30 * DAY_MS)}, False),
        (WITH_DEADLINE, {"ebbtide.erase.deadline.ms": None}, False),
        (WITH_DEADLINE, {"ebbtide.erase.deadline.ms": str(20 * DAY_MS)}, True),
        (WITH_DEADLINE, {"ebbtide.nightly.interval.ms": str(2 * DAY_MS)}, True),
        (WITH_DEADLINE, {"ebbtide.nightly.interval.ms": "1"}, False),
        (COMPACTED, {"ebbtide.nightly.interval.ms": str(2 * DAY_MS)}, False),
        ({}, {"ebbtide.max.delete.ratio": "1"}, True),
        ({}, {"ebbtide.max.delete.ratio": "0.1"}, False),
        ({"ebbtide.max.delete.records": "7"}, {"ebbtide.max.delete.records": None}, True),
        ({**DELETED, "ebbtide.enabled": "false"}, {"ebbtide.enabled": None}, True),
        ({"ebbtide.plan.four.eyes": "true"}, {"ebbtide.plan.four.eyes": None}, True),
        ({}, {"ebbtide.plan.four.eyes": "true"}, False),
        ({}, {MAX_SNAPSHOT_AGE: "0"}, True),
        ({}, {"ebbtide.undo.retention.ms": "0"}, True),
        ({}, {"ebbtide.undo.retention.ms": str(9 * DAY_MS)}, False),
        ({MAX_SNAPSHOT_AGE: "0"}, {MAX_SNAPSHOT_AGE: None}, False),
        ({"kafka.retention.ms": "soon"}, {"kafka.retention.ms": None}, True),
        ({}, {"ebbtide.source": "kafka:prod"}, False),
    ],
)
def test_a_change(before: dict[str, str], changes: dict[str, Any], named: bool) -> None:
    assert removing_more(before, changes) == (list(changes) if named else [])


def test_a_limit_that_goes_is_named_where_another_then_goes_by_another_clock() -> None:
    both = {**DELETED, "kafka.retention.ms": "9", "kafka.retention.max.eventtime.ms": "9"}
    event_time: dict[str, str | None] = {"kafka.retention.max.eventtime.ms": None}
    assert removing_more(both, event_time) == ["kafka.retention.max.eventtime.ms"]
