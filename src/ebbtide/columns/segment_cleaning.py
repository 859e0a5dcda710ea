"""A cleaner round over the records of one segment, column by column.

Kafka: Cleaner.buildOffsetMap, Cleaner.shouldRetainRecord, MemoryRecords.filterTo. The offset map is
unbounded here and compares whole keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.keys import last_of_each
from ebbtide.columns.live_records import Records
from ebbtide.columns.rewritten_batches import Rewriting, rewrite_batches
from ebbtide.columns.transaction_rows import read_transactions
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.compaction import Round, Verdict, are_tombstones_due, verdict_on
from ebbtide.kafka.transactions import LastRecord, TransactionsAround
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import DELETE_HORIZON

# The rules that remove a record, in the order in which they apply.
ABORTED = "aborted"
KEYLESS = "keyless"
SUPERSEDED = "superseded"
TOMBSTONE = "tombstone"
RULES = (ABORTED, KEYLESS, SUPERSEDED, TOMBSTONE)

# Records judged at a time.
ROWS_AT_ONCE = 65_536

# (keys, offsets) of records -> whether the dirty part has the key at a later offset
IsSuperseded = Callable[[pa.ChunkedArray, Int64s], Bools]


class SegmentEffect(NamedTuple):
    """A round's effect on the data batches of one segment."""

    is_victim: Bools
    by_rule: dict[str, int]
    tombstones_kept: int
    tombstones_held_back: int  # due, but waiting for a replica that ends before them
    rewriting: Rewriting


def judge_headers(
    headers: BatchHeaders,
    this_round: Round,
    last_records: Mapping[int, LastRecord],
    around: TransactionsAround,
) -> list[tuple[Batch, Verdict]]:
    """Return the batches below the round's end that are not ordinary, with their verdicts.

    These are control batches, empty ones, aborted data, a batch that straddles the log start
    offset, and those that must stay for their producer or as the round's last. The headers are a
    part of a log, and `around` are the transactions that it shares with the rest.
    """
    bound, lasts = this_round.first_uncleanable_offset, headers.column("last_offset")
    is_decided = read_transactions(headers, this_round.log_start_offset, around)
    last_data = [last_record.last_data_offset for last_record in last_records.values()]
    is_special = is_decided | headers.is_control | (headers.column("record_count") == 0)
    is_special |= headers.is_astride(this_round.log_start_offset) | (lasts == bound - 1)
    is_special |= np.isin(lasts, [offset for offset in last_data if offset is not None])
    is_special &= headers.column("base_offset") < bound
    return [
        (batch, verdict_on(batch, this_round, last_records, is_decided=decided))
        for batch, decided in zip(
            headers.where(is_special).batches(), is_decided[is_special].tolist(), strict=True
        )
    ]


def dirty_keys(rows: pa.Table, discarded: Sequence[int], first_dirty_offset: int) -> pa.Table:
    """Return `hash, key, offset` of each key's last dirty record, without aborted data.

    `rows` has `offset, batch, key`. `discarded` has the base offsets of aborted batches.
    """
    is_dirty = rows["offset"].to_numpy() >= first_dirty_offset
    is_dirty &= ~np.isin(rows["batch"].to_numpy(), list(discarded))
    is_dirty &= rows["key"].is_valid().to_numpy()
    return last_of_each(rows.filter(pa.array(is_dirty)))


def clean_segment(
    rows: pa.Table,
    headers: BatchHeaders,
    verdicts: Mapping[int, Verdict],
    is_superseded: IsSuperseded,
    this_round: Round,
    future_limit_ms: int,
) -> SegmentEffect:
    """Run the round over the records of one segment; `rows` has COLUMNS, in offset order.

    `headers` are all its batches. `verdicts` are those that are not ORDINARY, by base offset.
    `is_superseded` looks records up in the offset map.
    """
    batches = rows["batch"].to_numpy()
    held = headers.where(np.isin(headers.column("base_offset"), batches))
    rules, rewritings, held_back = [], [], 0
    for start, end in _some_batches(batches):
        records = Records.of(rows.slice(start, end - start), future_limit_ms)
        mine, held = held.split(len(records.bases))
        superseded = is_superseded(records.keys, records.offsets)
        due = _has_due_tombstones(mine, this_round)
        is_held_back = mine.column("last_offset") >= this_round.held_back_from
        rules.append(_rules(records, verdicts, superseded, due & ~is_held_back))
        is_waiting = records.is_tombstone & (due & is_held_back)[records.batch_of]
        held_back += int(np.count_nonzero(is_waiting & (rules[-1] == 0)))
        rewritings.append(rewrite_batches(records, mine, verdicts, rules[-1] == 0, this_round))
    rule = np.concatenate(rules)
    return SegmentEffect(
        rule > 0,
        {name: int(np.count_nonzero(rule == code)) for code, name in enumerate(RULES, 1)},
        int(np.count_nonzero((rule == 0) & rows["is_tombstone"].to_numpy())),
        held_back,
        Rewriting.of_all(rewritings),
    )


def _some_batches(batches: Int64s) -> Iterator[tuple[int, int]]:
    """Yield spans of rows, of whole batches, that fit into a processor's cache together."""
    starts = np.append(np.flatnonzero(batches[1:] != batches[:-1]) + 1, len(batches))
    start = 0
    while start < len(batches):
        number = int(np.searchsorted(starts, start + ROWS_AT_ONCE))
        end = int(starts[min(number, len(starts) - 1)])
        yield start, end
        start = end


def _rules(
    records: Records,
    verdicts: Mapping[int, Verdict],
    is_superseded: Bools,
    drops_tombstones: Bools,
) -> npt.NDArray[np.int8]:
    """Return for each record the number of the rule that removes it, or 0 if it is retained.

    `drops_tombstones`: for each batch, whether its tombstones are removed.
    """
    discarded = [base for base, verdict in verdicts.items() if verdict.discards_records]
    is_discarded = np.isin(records.bases, discarded)[records.batch_of]
    conditions = (
        is_discarded,
        records.keys.is_null().to_numpy(False),
        is_superseded,
        records.is_tombstone & drops_tombstones[records.batch_of],
    )
    rules = np.zeros(len(records.offsets), np.int8)
    for code, holds in reversed(list(enumerate(conditions, 1))):
        rules[holds] = code
    return rules


def _has_due_tombstones(headers: BatchHeaders, this_round: Round) -> Bools:
    """Return for each batch whether its tombstones are due, by its horizon or age."""
    due = headers.has_bit(DELETE_HORIZON) | headers.is_legacy
    due[due] = [are_tombstones_due(b, this_round) for b in headers.where(due).batches()]
    return due
