"""A topic's settings beside their defaults, what each does, and where the brokers differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebbtide.lake.reader import LakeTopic
from ebbtide.log.attempts import Run
from ebbtide.log.settings.config import SETTINGS
from ebbtide.log.settings.defaults import default_text
from ebbtide.log.settings.effects import EFFECTS
from ebbtide.log.state.properties import DEFAULT_MAX_SNAPSHOT_AGE_MS, MAX_SNAPSHOT_AGE

_SNAPSHOT_AGE = (
    "How long a snapshot, and with it the deleted data that it shows, stays on the disk."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting of a topic; `value` is None where the default holds."""

    name: str
    value: str | None
    default: str
    effect: str
    broker: str | None = None  # where it differs


def setting_names() -> list[str]:
    """Return the names of all settings."""
    return [*SETTINGS, MAX_SNAPSHOT_AGE]


def default_of(name: str) -> str:
    """Return a setting's default as text."""
    if name == MAX_SNAPSHOT_AGE:
        return str(DEFAULT_MAX_SNAPSHOT_AGE_MS)
    return default_text(SETTINGS[name].field)


def setting_rows(topic: LakeTopic, runs: Sequence[Run]) -> list[SettingRow]:
    """Return all settings, those that are set or differ from the brokers' first."""
    drift = newest_drift(runs)
    rows = [
        SettingRow(
            name=name,
            value=topic.properties.get(name),
            default=default_of(name),
            effect=EFFECTS.get(name, _SNAPSHOT_AGE),
            broker=drift.get(name),
        )
        for name in setting_names()
    ]
    return sorted(rows, key=lambda row: row.value is None and row.broker is None)


def newest_drift(runs: Iterable[Run]) -> Mapping[str, str]:
    """Return the brokers' values of settings that differ, by the newest ingest that compared."""
    compared = [run.topic_result["drift"] for run in runs if "drift" in run.topic_result]
    return {of["name"]: of["broker"] for of in compared[-1]} if compared else {}
