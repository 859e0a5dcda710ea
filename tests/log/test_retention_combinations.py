"""KIP-870's test plan: all combinations of the settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice, product
from math import ceil

import pytest

from tests.log.decided_retention import config_of, decided
from tests.log.retention_model import LOGS, SETTINGS, Log, retained

RULES = {"log_start_offset", "size", "time", "event_time", "time_and_event_time"}


def combinations() -> Iterator[dict[str, str]]:
    for values in product(*SETTINGS.values()):
        chosen = zip(SETTINGS, values, strict=True)
        yield {name: value for name, value in chosen if value is not None}


def records_from(log: Log, start: int) -> int:
    """How many records the segments hold from an offset on."""
    return sum(
        base + i >= start and not entry.is_marker
        for base, entries in log.segments.items()
        for i, entry in enumerate(entries)
    )


# No setting has as many values, so that each fifth combination has all values of each two of them.
@pytest.mark.parametrize(
    "every", [5, pytest.param(1, marks=pytest.mark.long)], ids=["each fifth", "each"]
)
def test_every_combination_does_what_the_model_says(
    capsys: pytest.CaptureFixture[str], every: int
) -> None:
    rules, counted = Counter[str](), Counter[str]()
    for settings in islice(combinations(), 0, None, every):
        config = config_of(settings)
        counted["combinations"] += 1
        for name, log in LOGS.items():
            expiry, left = decided(log, config)
            assert left == retained(log, settings), (name, settings)
            counted["decisions"] += 1
            counted["that move the log start"] += left.start > log.start
            has_singles = len(left.offsets) < records_from(log, left.start)
            counted["that remove single records"] += has_singles
            rules.update(str(rule) for _, rule in expiry.removed)
    assert counted["combinations"] == ceil(4 * 3 * 3 * 3 * 2 * 3 * 3 / every)
    assert counted["decisions"] == counted["combinations"] * len(LOGS)
    assert counted["that remove single records"] > 1000 / every
    assert set(rules) == RULES
    assert min(rules.values()) > 1000 / every
    with capsys.disabled():
        print(f"\n{len(LOGS)} logs:", *(f"{n} {what}," for what, n in counted.items()), dict(rules))
