"""Work out what a cleaner round does to a topic, from the snapshots that the round pins.

Tasks judge batches and records, one segment each: first the dirty ones for the offset map, then
once all that the round covers. The driver holds what segments share: where transactions begin and
end, and each producer's last record.
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

# Find the records that later ones supersede, by segment: Kafka's offset map, of any size.
#
# Kafka bounds its map by memory and cleans only what fits; here a round is never partial.
# Partitions whose maps together fit into `spark.ebbtide.offset.map.bytes` are cleaned together,
# and their maps are sent to every task. The keys of a partition with a larger map are read once
# and split into shares, each of which has a map of its own; then the segments are cleaned by what
# these supersede.


log = logging.getLogger(__name__)

MAP_BYTES_SETTING = "spark.ebbtide.offset.map.bytes"
MAP_BYTES = 768 * 1024 * 1024
# At most while its map is made, as measured, a dirty record takes so much for its hash, offset,
# filter and order, and so many times its key.
RECORD_BYTES = 100
KEY_COPIES = 4
# A key column is taken to be at most this many times larger than its file.
MOST_COMPRESSED = 20

R = TypeVar("R")
FindKeys = Callable[[SegmentFiles], pa.Table]
Clean = Callable[[SegmentFiles, IsSuperseded], R]


class _Turn(NamedTuple):
    """Partitions whose offset maps are made together: `size_bytes` in all."""

    partitions: frozenset[int]
    size_bytes: int


def map_with_superseded(
    spark: SparkSession,
    segments: Sequence[SegmentFiles],
    dirty: Sequence[SegmentFiles],
    find_keys: FindKeys,
    clean: Clean[R],
    fold: Fold[R],
) -> list[R]:
    """Clean each segment, given its files and its superseded records; return what `fold` makes.

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
    """Return the memory that each partition's map takes, in bytes; 0 if nothing in it is dirty."""
    sizes = dict.fromkeys(sorted({unit.partition for unit in segments}), 0)
    most = sum(file.size_bytes for unit in dirty for file in unit.files) * MOST_COMPRESSED
    for unit in dirty:
        sizes[unit.partition] += unit.record_count * RECORD_BYTES
    if KEY_COPIES * most > limit:  # else their footers need not be opened
        key_sizes = in_threads(spark, _key_bytes, dirty, "looks at keys of")
        for unit, key_bytes in zip(dirty, key_sizes, strict=True):
            sizes[unit.partition] += KEY_COPIES * key_bytes
    return sizes


def _key_bytes(unit: SegmentFiles) -> int:
    """Estimate the bytes of a segment's keys; a repeated key may count once."""
    return column_bytes(unit, "key")


def _turns(sizes: Mapping[int, int], limit: int) -> Iterator[_Turn]:
    """Yield all partitions, as many together as fit into `limit` bytes."""
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
    """Return how many shares so many bytes make, if as many as cores are held at a time."""
    return -(-size_bytes * spark.sparkContext.defaultParallelism // limit)


class _Superseded(NamedTuple):
    """The superseded records of a segment."""

    unit: SegmentFiles
    offsets: BitMap64


class _ToSplit(NamedTuple):
    """A segment by its number in the turn."""

    number: int
    unit: SegmentFiles
    is_dirty: bool


class _Piece(NamedTuple):
    """The rows of a segment whose keys belong to one share; of dirty ones, those for the map."""

    number: int
    rows: pa.Table  # hash, key, offset
    dirty: pa.Table | None


class _DirtyKeys(NamedTuple):
    """The keys of one dirty segment, or of neighbouring ones of a partition."""

    partition: int
    rows: pa.Table  # hash, key, offset

    @classmethod
    def by_partition(cls, found: list[_DirtyKeys]) -> list[_DirtyKeys]:
        """Put those of each partition together: a table of few rows takes 2 kB."""
        parts: dict[int, list[pa.Table]] = {}
        for of_segment in found:
            parts.setdefault(of_segment.partition, []).append(of_segment.rows)
        return [cls(p, pa.concat_tables(tables).combine_chunks()) for p, tables in parts.items()]


class _TurnWork(NamedTuple):
    """The segments of one turn, by their numbers, and the dirty ones among them."""

    spark: SparkSession
    segments: Sequence[SegmentFiles]
    numbers: Sequence[int]
    dirty: Sequence[SegmentFiles]
    find_keys: FindKeys

    def at_once(self, clean: Clean[R], fold: Fold[R]) -> list[R]:
        """Clean each segment by the whole map."""
        found = map_segments(
            self.spark,
            partial(_keys_of, self.find_keys),
            self.dirty,
            count_rows(self.dirty),
            "maps keys of",
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
        """Find what the map of each share supersedes, then clean each segment by that."""
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
        return map_segments(self.spark, work, of_segments, self.rows, "judges", fold)

    @property
    def rows(self) -> int:
        """How many rows the segments hold in all."""
        return count_rows([self.segments[number] for number in self.numbers])


def _keys_of(find_keys: FindKeys, unit: SegmentFiles) -> _DirtyKeys:
    """Find the keys of a dirty segment, in a task."""
    return _DirtyKeys(unit.partition, find_keys(unit))


def _clean_by_map(
    known: Shared[tuple[dict[int, OffsetMap], Sequence[SegmentFiles]]], clean: Clean[R], number: int
) -> R:
    """Clean one segment by its partition's map, in a task."""
    maps, segments = known.value
    offset_map, unit = maps[segments[number].partition], segments[number]
    return clean(unit, lambda keys, offsets: offsets < offset_map.latest(keys))


def _split(find_keys: FindKeys, shares: int, segment: _ToSplit) -> Iterator[tuple[int, _Piece]]:
    """Yield a segment's keys by the share that they belong to, in a task."""
    rows = read_segment(segment.unit, ("offset", "key")).table
    rows = rows.filter(rows["key"].is_valid())
    hashes = hash_keys(rows["key"].combine_chunks())
    rows = rows.select(["key", "offset"]).add_column(0, "hash", pa.array(hashes))
    of_dirty = _in_shares(find_keys(segment.unit), shares) if segment.is_dirty else {}
    for share, of_share in _in_shares(rows, shares).items():
        yield share, _Piece(segment.number, of_share, of_dirty.get(share))


def _in_shares(rows: pa.Table, shares: int) -> dict[int, pa.Table]:
    """Split rows with hashes; rows of a share keep their order."""
    # The filter before the map goes by the low bits of the same hashes.
    share_of = (rows["hash"].to_numpy() >> np.uint64(48)) % np.uint64(shares)
    order = np.argsort(share_of, kind="stable")
    numbers, starts = np.unique(share_of[order], return_index=True)
    # Not slices of one table: each would be sent with all of its buffers.
    return {
        int(share): rows.take(pa.array(places))
        for share, places in zip(numbers, np.split(order, starts)[1:], strict=True)
    }


def _find_superseded(pieces: list[_Piece]) -> list[tuple[int, bytes]]:
    """Return the offsets that a share of the map supersedes, by segment, in a task.

    They are serialized: the bitmaps of all shares at once would take 70 bytes an offset.
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
    """Work out the round's effect, which follows from the round and its snapshots alone.

    `headers` are those of the round's batches snapshot, if they have been read before.
    `keeps_offsets` asks for the offsets that leave.
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
    """Make the offset map from the dirty segments, then clean each segment; one a partition."""
    spark = topic.spark
    units = _units(topic, cleaning, rules, headers)
    records = [unit.records for unit in units if unit.records is not None]
    others = [unit.batches for unit in units if unit.records is None]
    dirty = _dirty(records, cleaning)
    log.info("judges %d segments, of which %d may hold dirty records", len(units), len(dirty))
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
        effects += map_segments(spark, clean, others, other_rows, "judges headers of", fold)
    log.info("judged %s rows of files in %.1f s", number(rows), time.monotonic() - started)
    return UnitEffect.by_partition(effects)


def _units(
    topic: Topic,
    cleaning: CleaningRound,
    rules: Mapping[int, PartitionRules],
    headers: Mapping[int, LogHeaders],
) -> list[Unit]:
    """Return the segments of the round, with what they share of transactions with others."""
    spark, name = topic.spark, topic.name
    ends = {p: part.first_uncleanable_offset for p, part in cleaning.partitions.items()}
    # Where no batch is left, no record is left either: the file's rows are all deleted.
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
        # Beyond the round too: a transaction's marker may lie there.
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
    """Return the segments that hold dirty records; none in an idle round."""
    dirty = []
    for partition, mine in _by_partition(records).items():
        first, end = cleaning.partitions[partition].dirty
        if first < end:
            start = segment_of([unit.segment for unit in mine], first)
            dirty += [unit for unit in mine if unit.segment >= start]
    return dirty


def _carried(headers: LogHeaders, rules: PartitionRules, unit: UnitEffect) -> list[RowChanges]:
    """Return changes of rows that take over producers' facts from rows that the round removes."""
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
    """Return the changes, without those of rows that `later` changes, and the later ones."""
    if not later:
        return [changes]
    return [changes.without(RowChanges.together(later).base_offsets()), *later]
