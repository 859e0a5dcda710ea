"""How much a run over random logs must have compared before it proves anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

# Of 3,100 random logs none was refused. Few logs keep a marker longer, each for up to all of its
# rounds: in six runs of a hundred logs 0 to 8 of 500 rounds.
MOST_REFUSED = 0.05  # of the logs
MOST_MARKERS_KEPT = 0.1  # of the rounds


@dataclass(kw_only=True)
class Compared:
    """What a run compared; `picked` counts rounds by how each log was picked."""

    logs: int = 0
    refused: int = 0  # by Kafka and by the plain rules
    picked: Counter[str] = field(default_factory=Counter)
    markers_kept_longer: int = 0

    def add(self, other: Self) -> None:
        """Count the other's logs too."""
        self.logs += other.logs
        self.refused += other.refused
        self.picked += other.picked
        self.markers_kept_longer += other.markers_kept_longer

    def gaps(self) -> list[str]:
        """Why the run proves too little, a reason in a line; nothing where it proves enough."""
        rounds = sum(self.picked.values())
        lines = []
        if self.refused > MOST_REFUSED * self.logs:
            lines.append(
                f"expected at most {MOST_REFUSED:.0%} of the logs to be refused by Kafka and by "
                f"the plain rules, found {self.refused} of {self.logs}: those are not compared"
            )
        if self.markers_kept_longer > MOST_MARKERS_KEPT * rounds:
            lines.append(
                f"expected at most {MOST_MARKERS_KEPT:.0%} of the rounds to keep a marker longer "
                f"than Kafka's, found {self.markers_kept_longer} of {rounds}"
            )
        if not self.picked.get("dirty"):
            lines.append(f"expected a dirty round, found none among {rounds} rounds: ask more logs")
        return lines
