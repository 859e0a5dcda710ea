"""Low watermarks as jobs have reported them."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide.lake.reader import Run
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK


def low_watermarks(runs: Iterable[Run]) -> dict[int, int]:
    """Return the newest low watermark of each partition that a job reported, oldest run first."""
    return {
        partition: numbers["low_watermark"]
        for run in runs
        for partition, numbers in run.partitions.items()
        if numbers.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
    }
