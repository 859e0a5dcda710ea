"""Guards of a night: how much a stage may remove from a topic before a person has to agree."""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.log.settings.config import TopicConfig

RATIO = "ebbtide.max.delete.ratio"
RECORDS = "ebbtide.max.delete.records"
BYTES = "ebbtide.max.delete.bytes"
EMPTIED = "ebbtide.max.emptied.partitions"


class Removal(NamedTuple):
    """What a stage would remove from a topic: the bytes of the log, and their share in [0, 1]."""

    records: int
    bytes: int
    share: float = 0.0
    emptied_partitions: int = 0


def tripped(name: str, config: TopicConfig, removal: Removal) -> str:
    """Return which guards a removal trips, each with its setting and number; empty where none."""
    emptied = removal.emptied_partitions
    guards: list[tuple[str, str, float | None, float]] = [
        (RATIO, "of the bytes", config.max_delete_ratio, removal.share),
        (RECORDS, "records", config.max_delete_records, removal.records),
        (BYTES, "bytes", config.max_delete_bytes, removal.bytes),
        (EMPTIED, "emptied partitions", config.max_emptied_partitions, emptied),
    ]
    allowed, found = [], []
    for setting, unit, limit, amount in guards:
        if limit is not None and amount > limit:
            allowed.append(f"{_shown(limit)} {unit} ({setting})")
            found.append(f"{_shown(amount)} {unit}")
    if not found:
        return ""
    most = " and ".join(allowed)
    return f"expected to remove at most {most} of {name}, found {' and '.join(found)}"


def _shown(amount: float) -> str:
    """Return a count with its thousands marked, or a share to four digits."""
    return f"{amount:.4g}" if isinstance(amount, float) else f"{amount:,}"
