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


class _Guard(NamedTuple):
    """A setting, its limit, and how much of it a removal takes."""

    setting: str
    unit: str
    limit: float | None
    amount: float

    @property
    def is_tripped(self) -> bool:
        """Whether the removal takes more than the limit."""
        return self.limit is not None and self.amount > self.limit


def tripped(name: str, config: TopicConfig, removal: Removal) -> str:
    """Return which guards a removal trips, each with its setting and number; empty where none."""
    emptied = removal.emptied_partitions
    guards = [
        _Guard(RATIO, "of the bytes", config.max_delete_ratio, removal.share),
        _Guard(RECORDS, "records", config.max_delete_records, removal.records),
        _Guard(BYTES, "bytes", config.max_delete_bytes, removal.bytes),
        _Guard(EMPTIED, "emptied partitions", config.max_emptied_partitions, emptied),
    ]
    broken = [guard for guard in guards if guard.is_tripped]
    if not broken:
        return ""
    allowed = " and ".join(f"{_shown(of.limit)} {of.unit} ({of.setting})" for of in broken)
    found = " and ".join(f"{_shown(of.amount)} {of.unit}" for of in broken)
    return f"expected to remove at most {allowed} of {name}, found {found}"


def _shown(amount: float | None) -> str:
    """Return a count with its thousands marked, or a share to four digits."""
    return f"{amount:.4g}" if isinstance(amount, float) else f"{amount:,}"
