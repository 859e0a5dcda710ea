"""A cleaner round over the records of one segment, column by column.

Kafka: Cleaner.buildOffsetMap, Cleaner.shouldRetainRecord, MemoryRecords.filterTo. The offset map
is unbounded here and compares whole keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.frames.headers import Headers
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
from ebbtide.records.attributes import DELETE_HORIZON, NO_TIMESTAMP

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
ORDINARY = Verdict(False, False, Retention.DELETE_EMPTY)


class Records(NamedTuple):
    """Records of one segment in offset order; times in ms since the epoch, -1 where there is none.

    `batch_of` numbers the batches that hold any, whose base offsets are `bases`; batch i's records
    start at `starts[i]`.
    """

    offsets: Longs
    keys: pa.ChunkedArray
    is_tombstone: Bools
    timestamps_ms: Longs
    event_times_ms: Longs
    size_bytes: Longs
    bases: Longs
    starts: Longs
    batch_of: Longs

    @classmethod
    def of(cls, rows: pa.Table, future_limit_ms: int) -> Records:
        """The records of a table's rows; an event time too far in the future is its append time."""
        batches = rows["batch"].to_numpy()
        is_first = np.ones(len(batches), np.bool_)
        is_first[1:] = batches[1:] != batches[:-1]
        starts = np.flatnonzero(is_first)
        event_ms, append_ms = _to_ms(rows["event_time"]), _to_ms(rows["append_time"])
        is_future = (append_ms >= 0) & (event_ms > append_ms + future_limit_ms)
        return cls(
            rows["offset"].to_numpy(),
            rows["key"],
            rows["is_tombstone"].to_numpy(),
            _to_ms(rows["timestamp"]),
            np.where(is_future, append_ms, event_ms),
            rows["size_bytes"].to_numpy().astype(np.int64),
            batches[starts],
            starts,
            np.cumsum(is_first) - 1,
        )

    @property
    def counts(self) -> Longs:
        """How many records each batch has here."""
        return np.diff(self.starts, append=len(self.offsets))

    def sums(self, of_records: npt.NDArray[np.generic]) -> Longs:
        """The sum over each batch's records."""
        return np.add.reduceat(of_records.astype(np.int64), self.starts)

    def largest(self, of_records: Longs) -> Longs:
        """The largest over each batch's records."""
        return np.maximum.reduceat(of_records, self.starts)


def _to_ms(column: pa.ChunkedArray) -> Longs:
    micros = column.cast(pa.int64())
    is_missing = micros.is_null().to_numpy()
    found = micros.fill_null(0).to_numpy() // 1000
    return np.where(is_missing, NO_TIMESTAMP, found)


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
    keyed = rows.filter(pa.array(is_dirty)).filter(pc.field("key").is_valid())
    latest = keyed.group_by("key").aggregate([("offset", "max")])
    return latest.rename_columns(["key", "offset"])


def clean_segment(
    records: Records,
    headers: Headers,
    verdicts: Mapping[int, Verdict],
    latest: Longs,
    this_round: Round,
) -> SegmentEffect:
    """The round over the records of one segment.

    `headers` are those of the batches in `records.bases`, in that order; `verdicts` are the ones
    that are not ORDINARY, by base offset; `latest` is the offset map's word on each record's key.
    """
    rules = _rules(records, headers, verdicts, latest, this_round)
    left = _Left.of(records, headers, rules == 0)
    is_touched = left.survivors < records.counts
    is_touched |= (left.tombstones > 0) & ~headers.has_bit(DELETE_HORIZON)
    is_touched |= headers.is_legacy
    touched = np.flatnonzero(is_touched)
    before = headers.at(touched)
    judged = [
        (header, verdicts.get(header.base_offset, ORDINARY), left.of_batch(i, header, this_round))
        for i, header in zip(touched, before, strict=True)
    ]
    written, bases_ms = headers.written_bases, headers.column("base_timestamp_ms")
    old_bytes = records.sums(_record_bytes(records, written, bases_ms))
    after = [rewrite(*of_batch, this_round) for of_batch in judged]
    for i, header in zip(touched, after, strict=True):
        if header is not None:
            written[i], bases_ms[i] = header.written_base_offset, header.base_timestamp_ms
    # Where the records end depends on what they are written against.
    new_bytes = records.sums(np.where(left.stays, _record_bytes(records, written, bases_ms), 0))
    changes = []
    for i, (header, _, survivors), rewritten in zip(touched, judged, after, strict=True):
        if rewritten == header:
            continue
        if rewritten is not None and rewritten.record_count:
            sized = survivors._replace(
                records_bytes=int(new_bytes[i]), records_bytes_before=int(old_bytes[i])
            )
            rewritten = rewritten._replace(size_bytes=rewritten_bytes(header, sized))
        changes.append((header, rewritten, int(left.event_times_ms[i])))
    waiting = bases_ms[left.tombstones > 0]
    return SegmentEffect(
        ~left.stays,
        changes,
        {rule: int(np.count_nonzero(rules == code)) for code, rule in enumerate(RULES, 1)},
        int(left.tombstones.sum()),
        int(waiting.min()) if len(waiting) else None,
    )


def _rules(
    records: Records,
    headers: Headers,
    verdicts: Mapping[int, Verdict],
    latest: Longs,
    this_round: Round,
) -> npt.NDArray[np.int8]:
    """For each record the number of the rule by which it goes; 0 where it stays."""
    discarded = [base for base, verdict in verdicts.items() if verdict.discards_records]
    is_discarded = np.isin(records.bases, discarded)[records.batch_of]
    may_drop = headers.has_bit(DELETE_HORIZON) | headers.is_legacy
    asked = headers.where(may_drop).batches()
    may_drop[may_drop] = [drops_tombstones(batch, this_round) for batch in asked]
    conditions = [
        is_discarded,
        records.keys.is_null().to_numpy(),
        records.offsets < latest,
        records.is_tombstone & may_drop[records.batch_of],
    ]
    codes = [np.int8(code) for code in range(1, len(RULES) + 1)]
    return np.select(conditions, codes, np.int8(0))


class _Left(NamedTuple):
    """What stays, record by record and batch by batch."""

    stays: Bools
    survivors: Longs
    hidden: Longs  # below the log start offset, where the table holds no record any more
    tombstones: Longs
    firsts: Longs  # number of the first record that stays
    lasts: Longs
    max_timestamps_ms: Longs
    event_times_ms: Longs
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

    def of_batch(self, i: np.integer[Any], header: Batch, this_round: Round) -> Survivors:
        """What stays of batch i, without its bytes."""
        hidden = int(self.hidden[i]) if this_round.is_astride(header) else 0
        if not self.survivors[i]:
            return Survivors(0, hidden=hidden)
        first, last = self.firsts[i], self.lasts[i]
        return Survivors(
            int(self.survivors[i]),
            bool(self.tombstones[i]),
            int(self.records.timestamps_ms[first]),
            int(self.max_timestamps_ms[i]),
            hidden=hidden,
            first_offset=int(self.records.offsets[first]),
            last_offset=int(self.records.offsets[last]),
        )


def _record_bytes(records: Records, bases: Longs, bases_ms: Longs) -> Longs:
    """Bytes of each v2 record: attributes, deltas, key, value, headers, and its length before."""
    body = (
        1
        + varint_bytes(records.timestamps_ms - bases_ms[records.batch_of])
        + varint_bytes(records.offsets - bases[records.batch_of])
        + records.size_bytes
    )
    return body + varint_bytes(body)


def varint_bytes(values: Longs) -> Longs:
    """Lengths of zigzag varints."""
    magnitudes = np.maximum(values, -values - 1)
    largest = int(magnitudes.max(initial=0))
    lengths = np.ones(len(values), np.int64)
    for bits in range(6, 63, 7):
        if largest < 1 << bits:
            break
        lengths += magnitudes >= 1 << bits
    return lengths
