"""The logs that are cleaned: how long, how dirty, keyed how, in batches of how many records."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

VALUE_BYTES = 200
KEY_BYTES = 16
SEGMENT_BYTES = 128 * 1024 * 1024  # Kafka's 1 GiB would make one or two segments of these logs
TOMBSTONES = 0.01  # of the dirty records
ZIPF_EXPONENT = 1.0
FIRST_TIMESTAMP_MS = 1_795_000_000_000
NOW_MS = FIRST_TIMESTAMP_MS + 86_400_000

_NAME = re.compile(r"(\d+)([km])-(\d+(?:\.\d+)?)(-zipf)?(?:-b(\d+))?")
_THOUSANDS = {"k": 1_000, "m": 1_000_000}


class Cell(NamedTuple):
    """One log of one partition: a clean part with a record a key, then a dirty part.

    The dirty part draws from the clean part's keys, so as many records survive as were clean.
    """

    name: str
    records: int
    dirty_percent: float
    is_zipf: bool
    batch_records: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read `<records>-<percent dirty>[-zipf][-b<records a batch>]`, such as 8m-5."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"expected a cell like 8m-5, 1m-20-zipf or 8m-5-b10, found {name!r}")
        number, unit, percent, zipf, batch = match.groups()
        records = int(number) * _THOUSANDS[unit]
        return cls(name, records, float(percent), zipf is not None, int(batch or 100))

    @property
    def dirty_records(self) -> int:
        """How many records lie in the dirty part."""
        return round(self.records * self.dirty_percent / 100)

    @property
    def clean_records(self) -> int:
        """How many records lie in the clean part: the first dirty offset, and all keys."""
        return self.records - self.dirty_records
