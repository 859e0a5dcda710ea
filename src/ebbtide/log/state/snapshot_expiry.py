"""Tell from what expire_snapshots last left whether it would find something to free.

It records the snapshots that it has left tidy, and its settings then. There is nothing to free
while the tables are at these snapshots and no older snapshot is past its age.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.properties import max_snapshot_age_ms, parse_property
from ebbtide.log.state.topic_state import MERGE, ROUND, TIDIED
from ebbtide.moments import earlier

# Rises when expire_snapshots reports or rewrites more, so that each topic is looked at once more.
_REPORTED = 3


class TableSnapshots(NamedTuple):
    """A table's current snapshot, and when the oldest one was made that may expire; None for none.

    One that is current, or that a branch or tag names, may not.
    """

    current: int | None
    oldest_ms: int | None


def tidied(tables: Mapping[str, TableSnapshots], config: TopicConfig) -> dict[str, str]:
    """Return the property that records the snapshots left tidy."""
    snapshots = {name: table.current for name, table in sorted(tables.items())}
    settings = [config.rewrite_deleted_share, config.merge_target_bytes]
    note = {"snapshots": snapshots, "settings": settings, "reported": _REPORTED}
    return {TIDIED: json.dumps(note)}


def is_tidy(
    properties: Mapping[str, str],
    config: TopicConfig,
    tables: Mapping[str, TableSnapshots],
    clock_ms: int,
) -> bool:
    """Return whether nothing can be freed; `clock_ms` is that of the machines that commit."""
    if ROUND in properties or _is_merging(properties):
        return False
    if properties.get(TIDIED) != tidied(tables, config)[TIDIED]:
        return False
    oldest_ms = earlier(clock_ms, max_snapshot_age_ms(properties))
    return all(of.oldest_ms is None or of.oldest_ms >= oldest_ms for of in tables.values())


def _is_merging(properties: Mapping[str, str]) -> bool:
    """Return a merge that is done leaves a trace without groups."""
    text = properties.get(MERGE)
    if text is None:
        return False
    return parse_property(MERGE, text, "a merge", lambda merge: bool(merge["groups"]))
