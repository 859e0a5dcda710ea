"""KIP-870's test plan: all combinations of the settings, and tables made before and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

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
        for base, of in log.segments.items()
        for i, entry in enumerate(of)
    )


def test_every_combination_does_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    rules, counted = Counter[str](), Counter[str]()
    for settings in combinations():
        config = config_of(settings)
        for is_tracked in (True, False):
            counted["combinations"] += 1
            for name, log in LOGS.items():
                expiry, left = decided(log, config, is_tracked=is_tracked)
                assert left == retained(log, settings, is_tracked=is_tracked), (name, settings)
                counted["decisions"] += 1
                counted["that move the log start"] += left.start > log.start
                has_singles = len(left.offsets) < records_from(log, left.start)
                counted["that remove single records"] += has_singles
                rules.update(str(rule) for _, rule in expiry.removed)
    assert counted["combinations"] == 2 * 4 * 3 * 3 * 3 * 2 * 3 * 3
    assert counted["decisions"] == counted["combinations"] * len(LOGS)
    assert counted["that remove single records"] > 1000
    assert set(rules) == RULES
    assert min(rules.values()) > 1000
    with capsys.disabled():
        print(f"\n{len(LOGS)} logs:", *(f"{n} {what}," for what, n in counted.items()), dict(rules))
