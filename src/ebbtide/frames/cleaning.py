"""A cleaner round over the records of one segment, column by column.

Kafka: Cleaner.buildOffsetMap, Cleaner.shouldRetainRecord, MemoryRecords.filterTo. The offset map
is unbounded here and compares whole keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.frames.headers import Headers
from ebbtide.frames.keys import last_of_each
from ebbtide.log.batches import Batch
from ebbtide.log.cleaning import (
    Retention,
    Round,
    Survivors,
    Verdict,
    drops_tombstones,
    rewrite,
    rewritten_bytes,
)
from ebbtide.records.arrays import Bools, Int64s, to_ms
from ebbtide.records.attributes import DELETE_HORIZON, NO_TIMESTAMP

# Why a record goes, in the order in which the rules are asked.
ABORTED = "aborted"
KEYLESS = "keyless"
SUPERSEDED = "superseded"
TOMBSTONE = "tombstone"
RULES = (ABORTED, KEYLESS, SUPERSEDED, TOMBSTONE)

# What a round reads of a record: never its value.
COLUMNS = (
    *("offset", "batch", "timestamp", "event_time", "append_time"),
    *("key", "is_tombstone", "size_bytes"),
)
# Records judged at a time.
ROWS_AT_ONCE = 65_536
ORDINARY = Verdict(False, False, Retention.DELETE_EMPTY)


class Records(NamedTuple):
    """Records of one segment in offset order; times in ms since the epoch, -1 where there is none.

    `batch_of` numbers the batches that hold any, whose base offsets are `bases`; batch i's records
    start at `starts[i]`.
    """

    offsets: Int64s
    keys: pa.ChunkedArray
    is_tombstone: Bools
    timestamps_ms: Int64s
    event_times_ms: Int64s
    size_bytes: Int64s
    bases: Int64s
    starts: Int64s
    batch_of: Int64s

    @classmethod
    def of(cls, rows: pa.Table, future_limit_ms: int) -> Records:
        """The records of a table's rows; an event time too far in the future is its append time."""
        batches = rows["batch"].to_numpy()
        is_first = np.ones(len(batches), np.bool_)
        is_first[1:] = batches[1:] != batches[:-1]
        starts = np.flatnonzero(is_first)
        event_ms, append_ms = to_ms(rows["event_time"]), to_ms(rows["append_time"])
        is_future = (append_ms >= 0) & (event_ms > append_ms + future_limit_ms)
        return cls(
            rows["offset"].to_numpy(),
            rows["key"],
            rows["is_tombstone"].to_numpy(),
            to_ms(rows["timestamp"]),
            np.where(is_future, append_ms, event_ms),
            rows["size_bytes"].to_numpy().astype(np.int64),
            batches[starts],
            starts,
            np.cumsum(is_first) - 1,
        )

    @property
    def counts(self) -> Int64s:
        """How many records each batch has here."""
        return np.diff(self.starts, append=len(self.offsets))

    def sums(self, of_records: npt.NDArray[np.generic]) -> Int64s:
        """The sum over each batch's records."""
        return np.add.reduceat(of_records.astype(np.int64), self.starts)

    def largest(self, of_records: Int64s) -> Int64s:
        """The largest over each batch's records."""
        return np.maximum.reduceat(of_records, self.starts)


# (keys, offsets) of records -> the last offset of each key in the dirty part, or -1
Latest = Callable[[pa.ChunkedArray, Int64s], Int64s]


class SegmentEffect(NamedTuple):
    """What a round does to the data batches of one segment."""

    is_victim: Bools
    changes: list[tuple[Batch, Batch | None, int]]  # before, after, max event time in ms
    by_rule: dict[str, int]
    tombstones_kept: int
    next_horizon_ms: int | None  # of the batches that still hold a tombstone


def dirty_keys(rows: pa.Table, discarded: Sequence[int], first_dirty_offset: int) -> pa.Table:
    """`key, offset`: where each key was written last in the dirty part, aborted data left out.

    `rows` has `offset, batch, key`; `discarded` are the base offsets of aborted batches.
    """
    is_dirty = rows["offset"].to_numpy() >= first_dirty_offset
    is_dirty &= ~np.isin(rows["batch"].to_numpy(), list(discarded))
    is_dirty &= rows["key"].is_valid().to_numpy()
    _, latest = last_of_each(rows.select(["key", "offset"]).filter(pa.array(is_dirty)))
    return latest


def clean_segment(
    rows: pa.Table,
    headers: Headers,
    verdicts: Mapping[int, Verdict],
    latest: Latest,
    this_round: Round,
    future_limit_ms: int,
) -> SegmentEffect:
    """The round over the records of one segment: `rows` has COLUMNS, in offset order.

    `headers` are those of all its batches; `verdicts` are the ones that are not ORDINARY, by base
    offset; `latest` is the offset map's word on keys, given with their records' offsets.
    """
    bases = headers.column("base_offset")
    parts = []
    for start, end in _some_batches(rows["batch"].to_numpy()):
        records = Records.of(rows.slice(start, end - start), future_limit_ms)
        mine = Headers(headers.table.take(pa.array(np.searchsorted(bases, records.bases))))
        found = latest(records.keys, records.offsets)
        parts.append(_clean_batches(records, mine, verdicts, found, this_round))
    by_rule = Counter[str]()
    for part in parts:
        by_rule.update(part.by_rule)
    return SegmentEffect(
        np.concatenate([part.is_victim for part in parts]),
        [change for part in parts for change in part.changes],
        by_rule,
        sum(part.tombstones_kept for part in parts),
        min((at for part in parts if (at := part.next_horizon_ms) is not None), default=None),
    )


def _some_batches(batches: Int64s) -> Iterator[tuple[int, int]]:
    """Spans of rows, each of whole batches, that together fit in a processor's cache."""
    starts = np.append(np.flatnonzero(batches[1:] != batches[:-1]) + 1, len(batches))
    start = 0
    while start < len(batches):
        number = int(np.searchsorted(starts, start + ROWS_AT_ONCE))
        end = int(starts[min(number, len(starts) - 1)])
        yield start, end
        start = end


def _clean_batches(
    records: Records,
    headers: Headers,
    verdicts: Mapping[int, Verdict],
    latest: Int64s,
    this_round: Round,
) -> SegmentEffect:
    """The round over some batches, whose headers are in the order of `records.bases`."""
    rules = _rules(records, headers, verdicts, latest, this_round)
    left = _Left.of(records, headers, rules == 0)
    waits = left.tombstones > 0
    is_touched = (left.survivors < records.counts) | (waits & ~headers.has_bit(DELETE_HORIZON))
    touched = np.flatnonzero(is_touched | headers.is_legacy)
    judged = [
        (header, verdicts.get(header.base_offset, ORDINARY), survivors)
        for header, survivors in left.of_batches(touched, headers.at(touched), this_round)
    ]
    after = [rewrite(*of_batch, this_round) for of_batch in judged]
    # Where the records end depends on what they are written against.
    old_bytes = records.sums(
        _record_bytes(records, headers.written_bases, headers.column("base_timestamp_ms"))
    )
    bases, bases_ms = _bases_after(headers, touched, after)
    new_bytes = records.sums(_record_bytes(records, bases, bases_ms) * left.stays)
    sizes = zip(new_bytes[touched].tolist(), old_bytes[touched].tolist(), strict=True)
    newest_ms = left.event_times_ms[touched].tolist()
    rows = zip(judged, after, sizes, newest_ms, strict=True)
    return SegmentEffect(
        ~left.stays,
        [
            (before, _sized(before, survivors, rewritten, of_records), event_ms)
            for (before, _, survivors), rewritten, of_records, event_ms in rows
            if rewritten != before
        ],
        {rule: int(np.count_nonzero(rules == code)) for code, rule in enumerate(RULES, 1)},
        int(left.tombstones.sum()),
        int(bases_ms[waits].min()) if waits.any() else None,
    )


def _bases_after(
    headers: Headers, touched: Int64s, after: Sequence[Batch | None]
) -> tuple[Int64s, Int64s]:
    """The base offset and timestamp that each batch's records are written against afterwards."""
    bases, bases_ms = headers.written_bases, headers.column("base_timestamp_ms")
    for i, batch in zip(touched, after, strict=True):
        if batch is not None:
            bases[i], bases_ms[i] = batch.written_base_offset, batch.base_timestamp_ms
    return bases, bases_ms


def _sized(
    before: Batch, survivors: Survivors, after: Batch | None, sizes: tuple[int, int]
) -> Batch | None:
    """The batch afterwards with its size, from what its records take then and took before."""
    if after is None or not after.record_count:
        return after
    new_bytes, old_bytes = sizes
    survivors = survivors._replace(records_bytes=new_bytes, records_bytes_before=old_bytes)
    return after._replace(size_bytes=rewritten_bytes(before, survivors))


def _rules(
    records: Records,
    headers: Headers,
    verdicts: Mapping[int, Verdict],
    latest: Int64s,
    this_round: Round,
) -> npt.NDArray[np.int8]:
    """For each record the number of the rule by which it goes; 0 where it stays."""
    discarded = [base for base, verdict in verdicts.items() if verdict.discards_records]
    is_discarded = np.isin(records.bases, discarded)[records.batch_of]
    may_drop = headers.has_bit(DELETE_HORIZON) | headers.is_legacy
    asked = headers.where(may_drop).batches()
    may_drop[may_drop] = [drops_tombstones(batch, this_round) for batch in asked]
    conditions = (
        is_discarded,
        records.keys.is_null().to_numpy(False),
        records.offsets < latest,
        records.is_tombstone & may_drop[records.batch_of],
    )
    rules = np.zeros(len(records.offsets), np.int8)
    for code, holds in reversed(list(enumerate(conditions, 1))):
        rules[holds] = code
    return rules


class _Left(NamedTuple):
    """What stays, record by record and batch by batch."""

    stays: Bools
    survivors: Int64s
    hidden: Int64s  # below the log start offset, where the table holds no record any more
    tombstones: Int64s
    firsts: Int64s  # number of the first record that stays
    lasts: Int64s
    max_timestamps_ms: Int64s
    event_times_ms: Int64s
    records: Records

    @classmethod
    def of(cls, records: Records, headers: Headers, stays: Bools) -> _Left:
        numbers = np.arange(len(stays))
        return cls(
            stays,
            records.sums(stays),
            headers.column("record_count") - records.counts,
            records.sums(stays & records.is_tombstone),
            np.minimum.reduceat(np.where(stays, numbers, len(stays) - 1), records.starts),
            np.maximum.reduceat(np.where(stays, numbers, 0), records.starts),
            records.largest(np.where(stays, records.timestamps_ms, NO_TIMESTAMP)),
            records.largest(np.where(stays, records.event_times_ms, NO_TIMESTAMP)),
            records,
        )

    def of_batches(
        self, numbers: Int64s, headers: Sequence[Batch], this_round: Round
    ) -> Iterator[tuple[Batch, Survivors]]:
        """These batches, whose headers are given, with what stays of each, but for its bytes."""
        firsts, lasts = self.firsts[numbers], self.lasts[numbers]
        columns = (
            self.survivors[numbers],
            self.tombstones[numbers] > 0,
            self.records.timestamps_ms[firsts],
            self.max_timestamps_ms[numbers],
            self.hidden[numbers],
            self.records.offsets[firsts],
            self.records.offsets[lasts],
        )
        rows = zip(headers, *(column.tolist() for column in columns), strict=True)
        for header, count, has_tombstone, first_ms, max_ms, hidden, first, last in rows:
            hidden = hidden if this_round.is_astride(header) else 0
            if count:
                left = Survivors(count, has_tombstone, first_ms, max_ms, 0, 0, hidden, first, last)
            else:
                left = Survivors(0, hidden=hidden)
            yield header, left


def _record_bytes(records: Records, bases: Int64s, bases_ms: Int64s) -> Int64s:
    """Bytes of each v2 record: attributes, deltas, key, value, headers, and its length before."""
    body = (
        1
        + varint_bytes(records.timestamps_ms - bases_ms[records.batch_of])
        + varint_bytes(records.offsets - bases[records.batch_of])
        + records.size_bytes
    )
    return body + varint_bytes(body)


def varint_bytes(values: Int64s) -> Int64s:
    """Lengths of zigzag varints."""
    magnitudes = np.maximum(values, -values - 1)
    largest = int(magnitudes.max(initial=0))
    lengths = np.ones(len(values), np.int64)
    for bits in range(6, 63, 7):
        if largest < 1 << bits:
            break
        lengths += magnitudes >= 1 << bits
    return lengths
