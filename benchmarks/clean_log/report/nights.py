"""Thirty nights, kept and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, Self

from benchmarks.clean_log.report.text import markdown

FILE = "nights.json"
BOUND = 1.2


class Night(NamedTuple):
    """The topic after a night: what its current snapshots name, and what lies on the disk."""

    night: int
    seconds: float
    live_rows: int
    deleted_rows_in_files: int
    data_files: int
    deletion_vectors: int
    manifests: int
    batch_rows: int
    batch_data_files: int
    batch_manifests: int
    metadata_files_on_disk: int
    files_on_disk: int
    bytes_on_disk: int


class KeptNights(NamedTuple):
    """The nights, and seconds of a full read of the live rows: as kept, and freshly written."""

    records: int
    percent: float
    date: str
    nights: list[Night]
    read_seconds: dict[str, float]

    @classmethod
    def of(cls, directory: Path) -> Self | None:
        """What is kept; None where nothing is."""
        path = directory / FILE
        if not path.exists():
            return None
        kept = cls(**json.loads(path.read_text()))
        return kept._replace(nights=[Night(*night) for night in kept.nights])

    @property
    def ratio(self) -> float:
        """How much longer the full read takes than of freshly written rows."""
        return self.read_seconds["kept"] / self.read_seconds["fresh"]

    def write(self, directory: Path) -> None:
        """Keep it."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_text(json.dumps(self._asdict()) + "\n")


def nights_table(kept: KeptNights) -> str:
    """The first night, every fifth, the last; and the full read."""
    shown = [night for night in kept.nights if night.night % 5 == 0 or night is kept.nights[-1]]
    rows = [
        [name.replace("_", " "), *(f"{night._asdict()[name]:,.0f}" for night in shown)]
        for name in Night._fields
    ]
    holds = "holds" if kept.ratio <= BOUND else "does not hold"
    return "\n".join(
        [
            f"### {kept.records:,} keys, {kept.percent:g} % of them written again each night",
            "",
            markdown(rows),
            "",
            f"{kept.date[:10]}: a full read of the live rows takes "
            f"{kept.read_seconds['kept']:.2f} s, "
            f"of the same rows freshly written {kept.read_seconds['fresh']:.2f} s: "
            f"{kept.ratio:.2f} times, and the bound of {BOUND} {holds}.",
        ]
    )
