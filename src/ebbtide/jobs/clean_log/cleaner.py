"""Compute a cleaner round's effect on a topic, from the snapshots that the round pins.

Each task works on one segment. Tasks first read the keys of dirty segments for the offset map, then
they judge every segment of the round once. The driver holds the facts that segments share: the
bounds of transactions and each producer's last record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.keys import OffsetMap, hash_keys
from ebbtide.columns.rewritten_batches import RowChanges, changes_of
from ebbtide.columns.segment_cleaning import IsSuperseded
from ebbtide.columns.transaction_rows import LogHeaders, LogOutline, Role
from ebbtide.iceberg.batch_rows import HEADERS_A_RECORD, look_at_headers
from ebbtide.iceberg.data_files import SegmentFiles, column_bytes, count_rows, read_segment
from ebbtide.iceberg.in_flight import CleaningRound
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import Topic
from ebbtide.jobs.clean_log.segment_round import (
    Known,
    PartitionRules,
    RoundEffect,
    Unit,
    UnitEffect,
    add_numbers,
    clean_unit,
    described,
    find_dirty_keys,
)
from ebbtide.jobs.removed_rows import by_partition
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.compaction import Round
from ebbtide.kafka.transactions import carried, last_records, transactions_around
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.spark.job_log import log_partitions
from ebbtide.spark.tasks import Fold, Shared, in_threads, map_segments, map_shares, shared
from ebbtide.state.logical_segments import segment_of
from ebbtide.text import number

# Find the superseded records of each segment with Kafka's offset map, of any size.
#
# Kafka bounds its map by memory and cleans only the records that fit. Here a round is never
# partial. Partitions whose maps together fit into `spark.ebbtide.offset.map.bytes` are cleaned
# together, and every task gets their maps. A partition with a larger map is cleaned alone. Its keys
# are read once and split into shares, and each share makes its own map. The segments are then
# cleaned by the offsets that the shares found superseded.


log = logging.getLogger(__name__)

MAP_BYTES_SETTING = "spark.ebbtide.offset.map.bytes"
MAP_BYTES = 768 * 1024 * 1024
# Measured peak memory of a dirty record while its map is made: RECORD_BYTES for its hash, offset,
# filter and order, and KEY_COPIES times its key.
RECORD_BYTES = 100
KEY_COPIES = 4
# The key column of a file is assumed to be at most this many times larger than the file.
MOST_COMPRESSED = 20

R = TypeVar("R")
FindKeys = Callable[[SegmentFiles], pa.Table]
Clean = Callable[[SegmentFiles, IsSuperseded], R]


class _Turn(NamedTuple):
    """Partitions whose offset maps are made together."""

    partitions: frozenset[int]
    size_bytes: int  # of all these maps


def map_with_superseded(
    spark: SparkSession,
    segments: Sequence[SegmentFiles],
    dirty: Sequence[SegmentFiles],
    find_keys: FindKeys,
    clean: Clean[R],
    fold: Fold[R],
) -> list[R]:
    """Call `clean` with each segment and its superseded records. Return the results of `fold`.

    `find_keys` returns the columns `hash, key, offset` of a dirty segment. All three functions
    run in tasks.
    """
    done: list[R] = []
    limit = int(spark.conf.get(MAP_BYTES_SETTING, str(MAP_BYTES)) or MAP_BYTES)
    for turn in _turns(_bytes_by_partition(spark, segments, dirty, limit), limit):
        numbers = [n for n, unit in enumerate(segments) if unit.partition in turn.partitions]
        mine = [unit for unit in dirty if unit.partition in turn.partitions]
        of_turn = _TurnWork(spark, segments, numbers, mine, find_keys)
        if turn.size_bytes <= limit:
            done += of_turn.at_once(clean, fold)
        else:
            count = _shares(spark, turn.size_bytes * of_turn.rows // count_rows(mine), limit)
            done += of_turn.by_share(count, clean, fold)
    return done


def _bytes_by_partition(
    spark: SparkSession, segments: Sequence[SegmentFiles], dirty: Sequence[SegmentFiles], limit: int
) -> dict[int, int]:
    """Return the bytes of memory for each partition's map; 0 if none of its records is dirty."""
    sizes = dict.fromkeys(sorted({unit.partition for unit in segments}), 0)
    most = sum(file.size_bytes for unit in dirty for file in unit.files) * MOST_COMPRESSED
    for unit in dirty:
        sizes[unit.partition] += unit.record_count * RECORD_BYTES
    if KEY_COPIES * most > limit:  # if not, no footer has to be read
        key_sizes = in_threads(spark, _key_bytes, dirty, "estimating keys of")
        for unit, key_bytes in zip(dirty, key_sizes, strict=True):
            sizes[unit.partition] += KEY_COPIES * key_bytes
    return sizes


def _key_bytes(unit: SegmentFiles) -> int:
    """Estimate the bytes of a segment's keys; a repeated key may count once."""
    return column_bytes(unit, "key")


def _turns(sizes: Mapping[int, int], limit: int) -> Iterator[_Turn]:
    """Yield turns of at most `limit` bytes in all; a larger partition has a turn of its own."""
    together, held = set[int](), 0
    for partition, size_bytes in sizes.items():
        if size_bytes > limit:
            yield _Turn(frozenset({partition}), size_bytes)
            continue
        if held + size_bytes > limit:
            yield _Turn(frozenset(together), held)
            together, held = set(), 0
        together.add(partition)
        held += size_bytes
    if together:
        yield _Turn(frozenset(together), held)


def _shares(spark: SparkSession, size_bytes: int, limit: int) -> int:
    """Return the number of shares, so that one share per core fits into `limit` bytes."""
    return -(-size_bytes * spark.sparkContext.defaultParallelism // limit)


class _Superseded(NamedTuple):
    """The superseded records of a segment."""

    unit: SegmentFiles
    offsets: BitMap64


class _ToSplit(NamedTuple):
    """A segment whose keys are split into shares."""

    number: int  # in the turn
    unit: SegmentFiles
    is_dirty: bool


class _Piece(NamedTuple):
    """One segment's rows in one share."""

    number: int  # of the segment in the turn
    rows: pa.Table  # hash, key, offset
    dirty: pa.Table | None  # the rows for the share's map


class _DirtyKeys(NamedTuple):
    """The keys of one dirty segment, or of several of a partition."""

    partition: int
    rows: pa.Table  # hash, key, offset

    @classmethod
    def by_partition(cls, found: list[_DirtyKeys]) -> list[_DirtyKeys]:
        """Return one table per partition, since even a table of few rows takes 2 kB."""
        parts: dict[int, list[pa.Table]] = {}
        for of_segment in found:
            parts.setdefault(of_segment.partition, []).append(of_segment.rows)
        return [cls(p, pa.concat_tables(tables).combine_chunks()) for p, tables in parts.items()]


class _TurnWork(NamedTuple):
    """The work on one turn's segments."""

    spark: SparkSession
    segments: Sequence[SegmentFiles]  # of all turns
    numbers: Sequence[int]  # of this turn's segments in `segments`
    dirty: Sequence[SegmentFiles]  # of this turn
    find_keys: FindKeys

    def at_once(self, clean: Clean[R], fold: Fold[R]) -> list[R]:
        """Clean each segment with the whole map of its partition."""
        found = map_segments(
            self.spark,
            partial(_keys_of, self.find_keys),
            self.dirty,
            count_rows(self.dirty),
            "mapping keys of",
            _DirtyKeys.by_partition,
        )
        keys: dict[int, list[pa.Table]] = {self.segments[n].partition: [] for n in self.numbers}
        for of_some in found:
            keys[of_some.partition].append(of_some.rows)
        maps = {partition: OffsetMap.of(tables) for partition, tables in keys.items()}
        log.info(
            "mapped %s dirty keys",
            number(sum(len(offset_map.keys) for offset_map in maps.values())),
        )
        with shared(self.spark, (maps, self.segments), self.rows) as known:
            return self._in_tasks(partial(_clean_by_map, known, clean), self.numbers, fold)

    def by_share(self, count: int, clean: Clean[R], fold: Fold[R]) -> list[R]:
        """Find the superseded offsets share by share, then clean each segment with them."""
        dirty = {unit.segment for unit in self.dirty}
        mine = [self.segments[number] for number in self.numbers]
        units = [_ToSplit(n, unit, unit.segment in dirty) for n, unit in enumerate(mine)]
        split = partial(_split, self.find_keys, count)
        superseded = [BitMap64() for _ in mine]
        for of_share in map_shares(self.spark, split, _find_superseded, units, count, self.rows):
            for n, offsets in of_share:
                superseded[n] |= BitMap64.deserialize(offsets)
        of_segments = [_Superseded(*pair) for pair in zip(mine, superseded, strict=True)]
        return self._in_tasks(partial(_clean_by_offsets, clean), of_segments, fold)

    def _in_tasks(
        self, work: Callable[[Any], R], of_segments: Sequence[Any], fold: Fold[R]
    ) -> list[R]:
        return map_segments(self.spark, work, of_segments, self.rows, "judging", fold)

    @property
    def rows(self) -> int:
        """The number of rows in the turn's segments."""
        return count_rows([self.segments[number] for number in self.numbers])


def _keys_of(find_keys: FindKeys, unit: SegmentFiles) -> _DirtyKeys:
    """Return the keys of a dirty segment, in a task."""
    return _DirtyKeys(unit.partition, find_keys(unit))


def _clean_by_map(
    known: Shared[tuple[dict[int, OffsetMap], Sequence[SegmentFiles]]], clean: Clean[R], number: int
) -> R:
    """Clean one segment with its partition's map, in a task."""
    maps, segments = known.value
    offset_map, unit = maps[segments[number].partition], segments[number]
    return clean(unit, lambda keys, offsets: offsets < offset_map.latest(keys))


def _split(find_keys: FindKeys, shares: int, segment: _ToSplit) -> Iterator[tuple[int, _Piece]]:
    """Yield the pieces of a segment, each with the number of its share, in a task."""
    rows = read_segment(segment.unit, ("offset", "key")).table
    rows = rows.filter(rows["key"].is_valid())
    hashes = hash_keys(rows["key"].combine_chunks())
    rows = rows.select(["key", "offset"]).add_column(0, "hash", pa.array(hashes))
    of_dirty = _in_shares(find_keys(segment.unit), shares) if segment.is_dirty else {}
    for share, of_share in _in_shares(rows, shares).items():
        yield share, _Piece(segment.number, of_share, of_dirty.get(share))


def _in_shares(rows: pa.Table, shares: int) -> dict[int, pa.Table]:
    """Split rows by their hash. The rows of a share keep their order."""
    # By the high bits, since the map's filter uses the low bits of the same hashes.
    share_of = (rows["hash"].to_numpy() >> np.uint64(48)) % np.uint64(shares)
    order = np.argsort(share_of, kind="stable")
    numbers, starts = np.unique(share_of[order], return_index=True)
    # Copies, since each slice of one table would be sent with all of the table's buffers.
    return {
        int(share): rows.take(pa.array(places))
        for share, places in zip(numbers, np.split(order, starts)[1:], strict=True)
    }


def _find_superseded(pieces: list[_Piece]) -> list[tuple[int, bytes]]:
    """Return the offsets that one share's map supersedes, by segment number, in a task.

    They are serialized, since the bitmaps of all shares together would take 70 bytes per offset.
    """
    in_order = sorted(pieces, key=lambda piece: piece.number)
    offset_map = OffsetMap.of([piece.dirty for piece in in_order if piece.dirty is not None])
    found = []
    for piece in pieces:
        offsets = piece.rows["offset"].to_numpy()
        latest = offset_map.latest(piece.rows["key"], piece.rows["hash"].to_numpy())
        superseded = BitMap64(offsets[offsets < latest].astype(np.uint64))
        found.append((piece.number, superseded.serialize()))
    return found


def _clean_by_offsets(clean: Clean[R], of_segment: _Superseded) -> R:
    superseded = np.frombuffer(of_segment.offsets.to_array(), np.int64)

    def is_superseded(_: pa.ChunkedArray, offsets: Int64s) -> Bools:
        return np.isin(offsets, superseded, assume_unique=True)

    return clean(of_segment.unit, is_superseded)


def effect_of(
    topic: Topic,
    cleaning: CleaningRound,
    headers: Mapping[int, LogHeaders] | None = None,
    *,
    keeps_offsets: bool = False,
) -> RoundEffect:
    """Compute the round's effect from the round and its snapshots alone.

    `headers` are the headers of the round's batches snapshot, if they have been read before. With
    `keeps_offsets`, the effect lists the offsets of the removed records.
    """
    name = topic.name
    if headers is None:
        outlines = {
            p: LogOutline(part.log_start_offset, topic.partitions[p].segments, cleaning.now_ms)
            for p, part in cleaning.partitions.items()
        }
        headers = look_at_headers(
            topic.spark, name.batches_table, outlines, cleaning.batches_snapshot
        )
    rules = {
        partition: _rules(topic, partition, headers[partition].producers, cleaning)
        for partition in cleaning.partitions
    }
    units = _clean_units(topic, cleaning, rules, headers, keeps_offsets=keeps_offsets)
    effect = RoundEffect(segments={p: log_headers.segments for p, log_headers in headers.items()})
    effect.refused = {unit.partition: unit.refusal for unit in units if unit.refusal}
    cleaned = {unit.partition: unit for unit in units if not unit.refusal}
    changes = list[RowChanges]()
    for partition, of_partition in rules.items():
        if partition in effect.refused:
            continue
        unit = cleaned.get(partition) or UnitEffect.nothing(partition)
        carried_over = _carried(headers[partition], of_partition, unit)
        changes += _replaced(unit.changes, carried_over)
        add_numbers(effect, partition, of_partition.this_round, unit.numbers, unit.left)
    log_partitions(log, {p: described(numbers) for p, numbers in effect.numbers.items()})
    effect.changes = RowChanges.together(changes)
    effect.planned = by_partition(
        (p, unit.planned) for p, unit in cleaned.items() if unit.planned is not None
    )
    effect.deletions = [deletion for unit in cleaned.values() for deletion in unit.deletions]
    return effect


def _rules(
    topic: Topic, partition: int, producers: BatchHeaders, cleaning: CleaningRound
) -> PartitionRules:
    """Return the part of the round that the partition's tasks need."""
    part = cleaning.partitions[partition]
    this_round = Round(
        cleaning.now_ms,
        cleaning.delete_retention_ms,
        part.first_uncleanable_offset,
        part.log_start_offset,
        part.first_dirty_offset,
        topic.partitions[partition].segments,
        part.held_back_from,
        part.is_idle,
    )
    last = last_records(
        producers.last_batches_of_producers.batches(),
        now_ms=cleaning.now_ms,
        expiration_ms=cleaning.producer_id_expiration_ms,
    )
    return PartitionRules(this_round, part.first_segment_offset, last)


def _clean_units(
    topic: Topic,
    cleaning: CleaningRound,
    rules: Mapping[int, PartitionRules],
    headers: Mapping[int, LogHeaders],
    *,
    keeps_offsets: bool,
) -> list[UnitEffect]:
    """Map the dirty keys, then judge every segment. Return one effect per partition."""
    spark = topic.spark
    units = _units(topic, cleaning, rules, headers)
    records = [unit.records for unit in units if unit.records is not None]
    others = [unit.batches for unit in units if unit.records is None]
    dirty = _dirty(records, cleaning)
    log.info("judging %d segments, of which %d may hold dirty records", len(units), len(dirty))
    started = time.monotonic()
    rows, other_rows = count_rows(records), count_rows(others) // HEADERS_A_RECORD
    of_all = Known(
        rules,
        {unit.place: unit for unit in units},
        topic.config.message_timestamp_after_max_ms,
        keeps_offsets,
    )
    with shared(spark, of_all, max(rows, other_rows)) as known:
        find, clean = partial(find_dirty_keys, known), partial(clean_unit, known)
        fold = UnitEffect.by_partition
        effects = map_with_superseded(spark, records, dirty, find, clean, fold)
        effects += map_segments(spark, clean, others, other_rows, "judging headers of", fold)
    log.info("judged %s rows of data files in %.1f s", number(rows), time.monotonic() - started)
    return UnitEffect.by_partition(effects)


def _units(
    topic: Topic,
    cleaning: CleaningRound,
    rules: Mapping[int, PartitionRules],
    headers: Mapping[int, LogHeaders],
) -> list[Unit]:
    """Return the round's segments, each with its transactions that reach into other segments."""
    spark, name = topic.spark, topic.name
    ends = {p: part.first_uncleanable_offset for p, part in cleaning.partitions.items()}
    # A segment without a batch has no record either: all rows of its files are deleted.
    batches = plan_segments(spark, name.batches_table, cleaning.batches_snapshot, ends)
    records = {
        (unit.partition, unit.segment): unit
        for unit in plan_segments(spark, name.records_table, cleaning.records_snapshot, ends)
    }
    units = []
    for partition, mine in _by_partition(batches).items():
        of_partition = rules[partition]
        log = of_partition.covered(headers[partition].transactions)
        with_transactions = set(log.column("segment").tolist())
        # Beyond the round too, since a transaction's marker may be there.
        starts = sorted({*with_transactions, *(unit.segment for unit in mine)})
        log_start = of_partition.this_round.log_start_offset
        around = transactions_around(log.batches(), starts, log_start)
        by_start = dict(zip(starts, around, strict=True))
        units += [
            Unit(
                records.get((partition, unit.segment)),
                unit,
                by_start[unit.segment],
                unit.segment in with_transactions,
            )
            for unit in mine
        ]
    return units


def _by_partition(units: Iterable[SegmentFiles]) -> dict[int, list[SegmentFiles]]:
    by_partition: dict[int, list[SegmentFiles]] = {}
    for unit in units:
        by_partition.setdefault(unit.partition, []).append(unit)
    return by_partition


def _dirty(records: Sequence[SegmentFiles], cleaning: CleaningRound) -> list[SegmentFiles]:
    """Return the segments that may hold dirty records; an idle round has none."""
    dirty = []
    for partition, mine in _by_partition(records).items():
        first, end = cleaning.partitions[partition].dirty
        if first < end:
            start = segment_of([unit.segment for unit in mine], first)
            dirty += [unit for unit in mine if unit.segment >= start]
    return dirty


def _carried(headers: LogHeaders, rules: PartitionRules, unit: UnitEffect) -> list[RowChanges]:
    """Return changes to batch rows that take over producers' facts from removed batch rows."""
    producers = headers.producers
    is_elsewhere = ~np.isin(producers.column("segment"), unit.segments)
    left = producers.where(is_elsewhere).with_more([unit.left.newest])
    left, newest = left.newest_of_producers(), producers.newest_of_producers()
    gone = newest.where(~np.isin(newest.column("base_offset"), left.column("base_offset")))
    removed = gone.with_more([unit.left.early_markers])
    if not len(removed):
        return []
    known = removed.with_more([left, headers.in_role(Role.UNDECIDED)])
    known = known.where(np.isin(known.column("producer_id"), removed.column("producer_id")))
    moved = carried(
        known.batches(),
        set(removed.column("base_offset").tolist()),
        rules.last_records,
        rules.first_segment_offset,
    )
    rows = {base: row for row, base in enumerate(known.column("base_offset").tolist())}
    segments = known.column("segment").tolist()
    newest_ms = known.column("max_event_time_ms").tolist()
    by_segment: dict[int, list[tuple[Batch, Batch | None, int]]] = {}
    for before, after in moved:
        row = rows[before.base_offset]
        by_segment.setdefault(segments[row], []).append((before, after, newest_ms[row]))
    return [
        RowChanges.of(unit.partition, segment, changes_of(batches))
        for segment, batches in by_segment.items()
    ]


def _replaced(changes: RowChanges, later: Sequence[RowChanges]) -> list[RowChanges]:
    """Return `later`, and those of `changes` whose batch `later` does not change."""
    if not later:
        return [changes]
    return [changes.without(RowChanges.together(later).base_offsets()), *later]
