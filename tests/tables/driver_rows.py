"""How many rows Spark hands to the driver: few, as the driver holds metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.classic.dataframe import DataFrame


@pytest.fixture
def driver_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each answer, as they come."""
    answers: list[int] = []
    collect, to_arrow, iterate = DataFrame.collect, DataFrame.toArrow, DataFrame.toLocalIterator

    def collected(frame: DataFrame) -> Any:
        rows = collect(frame)
        answers.append(len(rows))
        return rows

    def as_arrow(frame: DataFrame) -> Any:
        rows = to_arrow(frame)
        answers.append(rows.num_rows)
        return rows

    def iterated(frame: DataFrame, *, prefetchPartitions: bool = False) -> Iterator[Any]:  # noqa: N803
        rows = list(iterate(frame, prefetchPartitions))
        answers.append(len(rows))
        return iter(rows)

    monkeypatch.setattr(DataFrame, "collect", collected)
    monkeypatch.setattr(DataFrame, "toArrow", as_arrow)
    monkeypatch.setattr(DataFrame, "toLocalIterator", iterated)
    return answers
