"""Where the time of a run of tests went, by file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

SHOWN = 10


def slowest_files(tests: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The files that took longest and their seconds, from (node id, seconds) of each phase."""
    seconds: dict[str, float] = defaultdict(float)
    for node_id, taken in tests:
        seconds[node_id.partition("::")[0]] += taken
    return sorted(seconds.items(), key=lambda file: -file[1])[:SHOWN]
