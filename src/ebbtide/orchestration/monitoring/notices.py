"""Tell a notifier of Airflow's what somebody should look at: tripped guards, overdue horizons,
holds whose review date has passed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbtide.errors import ConfigurationError, SafetyError
from ebbtide.lake.holds import HoldStanding
from ebbtide.lake.runs import newest
from ebbtide.log.attempts import Run
from ebbtide.orchestration.outcome import cause_of

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier

NOTIFIER = "EBBTIDE_NOTIFIER"


class Event(StrEnum):
    """What a notice is about."""

    GUARD_TRIPPED = "guard_tripped"
    HORIZON_OVERDUE = "horizon_overdue"
    HOLD_TO_REVIEW = "hold_to_review"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that somebody should look at; `text` is a whole sentence."""

    event: Event
    topic: str
    text: str


def guards_tripped(runs: Iterable[Run]) -> list[Notice]:
    """Return a notice for each topic that a guard stopped in the end."""
    return [
        Notice(
            Event.GUARD_TRIPPED, run.topic, f"{run.topic}: {run.job} was stopped: {cause_of(run)}"
        )
        for run in newest(runs).values()
        if run.error_class == SafetyError.__name__
    ]


def horizon_overdue(topic: str, seconds: int) -> Notice:
    """Return the notice of a horizon that a night should have reached."""
    return Notice(
        Event.HORIZON_OVERDUE,
        topic,
        f"{topic}: a delete horizon passed {seconds / 3600:.1f} hours before this night, and its "
        "tombstone or marker is still there; the report says what holds it back",
    )


def holds_to_review(standings: Iterable[HoldStanding]) -> list[Notice]:
    """Return a notice for each hold whose review date has passed."""
    return [
        Notice(Event.HOLD_TO_REVIEW, of.hold.topic, f"{of.hold.topic}: {of.hold.review_warning}")
        for of in standings
        if of.is_to_be_reviewed
    ]


def is_asked_for() -> bool:
    """Return whether a notifier is named."""
    return bool(os.environ.get(NOTIFIER))


def notify(context: Any, notices: Sequence[Notice]) -> None:
    """Call the notifier once; its templates see the notices as `ebbtide`."""
    told = {
        "notices": [asdict(notice) for notice in notices],
        "text": "\n".join(notice.text for notice in notices),
    }
    _notifier(os.environ[NOTIFIER])({**context, "ebbtide": told})


def _notifier(name: str) -> BaseNotifier:
    """Return the notifier of a dotted name: an instance, or a class that needs no argument."""
    from airflow.sdk import BaseNotifier

    module, _, attribute = name.rpartition(".")
    try:
        named = getattr(import_module(module), attribute)
        notifier = named() if isinstance(named, type) else named
    except Exception as error:
        raise ConfigurationError(
            f"expected {NOTIFIER} to name a notifier that can be made without arguments, found "
            f"{name}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(notifier, BaseNotifier):
        raise ConfigurationError(
            f"expected {NOTIFIER} to name a subclass of airflow.sdk.BaseNotifier or an instance, "
            f"found {name}, of {type(notifier).__name__}"
        )
    return notifier
