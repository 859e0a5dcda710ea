"""What the pages say of a topic whose table others write: its layout, its rules, what it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ebbtide.errors import EbbtideError
from ebbtide.lake.reader import LakeTopic
from ebbtide.log.adopted.layout import LAYOUT, Layout
from ebbtide.log.adopted.recognition import EXPLICIT, profile_named
from ebbtide.log.adopted.support import Rule, rules_of
from ebbtide.log.settings.config import SETTINGS
from ebbtide.specs.all_specs import SPECS

# The DAGs that people start for a topic, of which some work only on tables that ebbtide writes.
_BY_HAND = (
    *("configure_topic", "delete_records", "erase_keys", "export_segments"),
    *("hold_records", "mark_tombstones", "undo_run"),
)


class Adopted(NamedTuple):
    """An adopted table: its layout, which of Kafka's rules hold for it, and its settings."""

    layout: str  # whose it is, as the end of a sentence
    rules: Sequence[Rule]
    settings: str  # a NAME=VALUE a line, as the form of adopt_table takes them


def adopted(topic: LakeTopic) -> Adopted | None:
    """Return what is to be said of an adopted table; None of a topic of ebbtide's own."""
    if not topic.is_adopted:
        return None
    settings = "\n".join(f"{n}={v}" for n, v in topic.properties.items() if n in SETTINGS)
    try:
        layout = Layout.parse(topic.properties[LAYOUT])
        profile, rules = profile_named(layout.profile), list(rules_of(layout))
    except EbbtideError:  # somebody has damaged it: the next job says so
        return Adopted("a layout that this version does not know", (), "")
    is_named = profile.name == EXPLICIT
    whose = "the columns that it was given" if is_named else f"the layout of {profile.writer}"
    return Adopted(whose, rules, settings)


def refuses(topic: LakeTopic | None, dag: str) -> bool:
    """Return whether a DAG that people start works only on tables that ebbtide writes."""
    if topic is None or not topic.is_adopted or dag not in _BY_HAND:
        return False
    return not SPECS[dag].works_on_adopted


def possible(topic: LakeTopic, dags: Iterable[str]) -> list[str]:
    """Return those of the DAGs that work on a topic."""
    return [dag for dag in dags if not refuses(topic, dag)]
