"""What an ingest reads of its records, batch by batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ebbtide.columns.headers import TIMES, TOTALS, batch_totals, together_by_batch, with_totals

T0 = datetime(2026, 11, 1, tzinfo=UTC)
LIMIT_MS = 1_000


def row(offset: int, batch: int, event_s: float | None, append_s: float | None = 0) -> Any:
    times = [None if s is None else T0 + timedelta(seconds=s) for s in (event_s, append_s)]
    return dict(zip(TIMES, (offset, batch, times[0], *times), strict=True))


def totals(*rows: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    types = [pa.int64(), pa.int64(), *(3 * [pa.timestamp("us", tz="UTC")])]
    schema = pa.schema(list(zip(TIMES, types, strict=True)))
    totals_by_batch = batch_totals(7, pa.Table.from_pylist(list(rows), schema), LIMIT_MS)
    return [dict(numbers, ms=numbers.pop("event_ms")) for numbers in totals_by_batch.to_pylist()]


def ms(seconds: float) -> int:
    return int((T0.timestamp() + seconds) * 1000)


def test_each_batch_is_counted_with_its_largest_times() -> None:
    first, second = totals(row(0, 0, -5), row(2, 0, -9), row(5, 5, None))
    assert (first["base_offset"], first["records"], first["untimed"]) == (0, 2, 0)
    assert (first["partition"], first["ms"], first["append_ms"]) == (7, ms(-5), ms(0))
    assert (second["base_offset"], second["records"], second["untimed"]) == (5, 1, 1)
    assert second["ms"] is None


def test_an_event_time_too_far_ahead_counts_as_the_append_time() -> None:
    (at_limit,), (beyond,) = totals(row(0, 0, 1)), totals(row(0, 0, 1.001))
    assert (at_limit["ms"], beyond["ms"]) == (ms(1), ms(0))
    (unknown,) = totals(row(0, 0, 99, None))
    assert (unknown["ms"], unknown["append_ms"]) == (ms(99), None)


def test_times_before_1970_are_times() -> None:
    (total,) = totals(row(0, 0, -T0.timestamp() - 1))
    assert total["ms"] == -1000


def test_a_batch_in_two_files_is_one_row() -> None:
    import pyarrow as pa

    types = [pa.int64(), pa.int64(), *(3 * [pa.timestamp("us", tz="UTC")])]
    schema = pa.schema(list(zip(TIMES, types, strict=True)))
    parts = [
        batch_totals(0, pa.Table.from_pylist([row(at, 0, at)], schema), LIMIT_MS) for at in (0, 1)
    ]
    (total,) = together_by_batch(parts).to_pylist()
    assert (total["records"], total["event_ms"]) == (2, ms(1))
    assert totals() == []
    assert together_by_batch([]).num_rows == 0


def test_totals_lie_beside_their_batches_whatever_their_order() -> None:
    import pyarrow as pa

    places = [(0, 0), (0, 4), (0, 9), (2, 0), (3, 7)]
    of_places = {(0, 4): 40, (2, 0): 20, (0, 9): 90, (7, 1): 1}
    batches = pa.table(
        {
            "base_offset": pa.array([base for _, base in places], pa.int64()),
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
        }
    )
    totals = pa.Table.from_pylist(
        [
            {"partition": partition, "base_offset": base, "records": count}
            for (partition, base), count in of_places.items()
        ],
        TOTALS,
    )
    for rows in (batches, batches.take([3, 1, 4, 0, 2])):
        beside = with_totals(rows, totals)
        assert beside["records"].to_pylist() == [of_places.get(place) for place in places]
        assert beside.select(batches.column_names) == batches
    nothing = with_totals(batches, TOTALS.empty_table())
    assert nothing["records"].to_pylist() == [None] * 5
