"""Schedules of what people, machines and nights do to a topic, chosen by hypothesis."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.erasure.world import PEOPLE, World
from tests.tables.nights import DAY_MS

KEY = st.sampled_from(PEOPLE)
# Two nights are a day apart at most, as ebbtide.nightly.interval.ms says.
HOURS = st.integers(2, 24)
# A job is killed before its commit with this number, counted over the night.
KILLS = st.lists(st.integers(0, 25), max_size=2)
DAY_H = 24


def machine_of(new_world: Callable[[], World], tell: Callable[[World], None]) -> type[Any]:
    """A state machine; each schedule gets a world of its own, which is told of at its end."""

    class Erasures(RuleBasedStateMachine):
        world: World

        @initialize(
            spare_days=st.integers(0, 3),
            undoes=st.integers(0, 3).map(lambda n: not n),
            is_clean=st.booleans(),
        )
        def begin(self, spare_days: int, undoes: bool, is_clean: bool) -> None:
            self.world = new_world()
            self.world.begin(spare_days, undoes=undoes, is_clean=is_clean)
            self.world.delete(PEOPLE[0])

        @rule(key=KEY)
        def produce(self, key: str) -> None:
            self.world.produce(key)

        @rule(key=KEY)
        def delete(self, key: str) -> None:
            self.world.delete(key)

        @rule(key=KEY)
        def replay(self, key: str) -> None:
            """A record from before everything is written once more."""
            self.world.produce(key, ago_ms=400 * DAY_MS)

        @rule(key=KEY)
        def erase(self, key: str) -> None:
            self.world.erase(key)

        @rule(hours=HOURS, kills=KILLS)
        def night(self, hours: int, kills: list[int]) -> None:
            self.world.night(hours, kills)

        @rule()
        def two_days_pass(self) -> None:
            for _ in range(2):
                self.world.night(DAY_H, [])

        @precondition(lambda self: not self.world.holds)
        @rule()
        def hold(self) -> None:
            self.world.hold()

        @precondition(lambda self: self.world.holds)
        @rule()
        def end_hold(self) -> None:
            self.world.end_holds()

        @rule()
        def replica_goes_or_returns(self) -> None:
            self.world.set_down(not self.world.is_down)

        @precondition(lambda self: self.world.removed_by and not self.world.holds)
        @rule()
        def undo(self) -> None:
            self.world.undo()

        @precondition(lambda self: not (self.world.holds or self.world.undoes))
        @rule()
        def restore(self) -> None:
            self.world.restore()

        @precondition(lambda self: self.world.erasures)
        @rule(data=st.data())
        def certify(self, data: st.DataObject) -> None:
            self.world.certify(data.draw(st.sampled_from(sorted(self.world.erasures))))

        @invariant()
        def all_holds(self) -> None:
            self.world.check()

        def teardown(self) -> None:
            if sys.exc_info()[0] is None and hasattr(self, "world"):
                self.world.end()
                tell(self.world)

    return Erasures
