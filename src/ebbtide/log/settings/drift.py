"""Find where a topic's settings differ from its brokers'.

Settings that decide a log's layout are copied when a topic's table is made. Settings that remove
records are not copied until somebody confirms them: an archive exists to keep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from ebbtide.errors import ConfigurationError
from ebbtide.log.settings.config import PREFIX, parse_config

LAYOUT = (
    *("segment.bytes", "segment.ms", "max.message.bytes"),
    *("message.timestamp.type", "message.timestamp.after.max.ms"),
)
REMOVAL = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms"),
    *("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms"),
)
# No limit, which here is no setting.
_NO_LIMIT = (("retention.ms", "-1"), ("retention.bytes", "-1"))


class Drift(NamedTuple):
    """A setting that the table and the brokers have differently; None: not set."""

    name: str
    table: str | None
    broker: str


def layout_of(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table, from the brokers' configuration of the topic."""
    names = [name for name in LAYOUT if name in configs and _is_known(name, configs[name])]
    return {PREFIX + name: configs[name] for name in names}


def drifts(properties: Mapping[str, str], configs: Mapping[str, str]) -> list[Drift]:
    """Return each setting that takes effect differently here and there."""
    differing = []
    for name in (*LAYOUT, *REMOVAL):
        if name not in configs or not _is_known(name, configs[name]):
            continue
        here, there = properties.get(PREFIX + name), configs[name]
        is_no_limit = here is None and (name, there) in _NO_LIMIT
        if not is_no_limit and _parsed(name, here) != _parsed(name, there):
            differing.append(Drift(PREFIX + name, here, there))
    return differing


def drift_note(topic: str, differing: list[Drift]) -> str:
    """Return the note on differing settings, and how to confirm them."""
    names = ", ".join(drift.name for drift in differing)
    conf = json.dumps({"topic": topic, "from_source": True, "plan_only": True})
    return (
        f"{len(differing)} settings differ from the brokers': {names}; to see what a night would "
        f"remove with theirs, trigger configure_topic with {conf}, and with plan_only false to "
        "take them over"
    )


def _parsed(name: str, text: str | None) -> object:
    return parse_config({} if text is None else {PREFIX + name: text})


def _is_known(name: str, text: str) -> bool:
    """Return whether the value is one that this version can run with."""
    try:
        _parsed(name, text)
    except ConfigurationError:
        return False
    return True
