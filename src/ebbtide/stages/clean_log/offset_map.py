"""Find the records that later ones supersede, by segment: Kafka's offset map, of any size.

Kafka bounds its map by memory and cleans only what fits; here a round is never partial. Partitions
whose maps together fit into `spark.ebbtide.offset.map.bytes` are cleaned together, and their maps
are sent to every task. A larger map is built for one share of the keys at a time; the records that
a share supersedes are marked before the next share is built.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.columns.keys import Hashes, OffsetMap, hash_keys
from ebbtide.columns.segment_cleaning import IsSuperseded
from ebbtide.iceberg.files.data_files import (
    SegmentFiles,
    column_bytes,
    count_rows,
    read_segment,
)
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.spark.tasks import Fold, Shared, in_threads, map_segments, shared
from ebbtide.text import number

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
    """Partitions whose offset maps are made together, in how many shares of their keys."""

    partitions: frozenset[int]
    shares: int


class _Share(NamedTuple):
    """The keys whose hashes fall to `number` of `shares`."""

    number: int
    shares: int

    def holds(self, hashes: Hashes) -> Bools:
        """Return for each key, given by its hash, whether it belongs to this share."""
        # The filter before the map goes by the low bits of the same hashes.
        high = hashes >> np.uint64(48)
        return np.asarray(high % np.uint64(self.shares) == np.uint64(self.number))


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
        how = of_turn.at_once if turn.shares == 1 else partial(of_turn.by_share, turn)
        done += how(clean, fold)
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
            yield _Turn(frozenset({partition}), -(-size_bytes // limit))
            continue
        if held + size_bytes > limit:
            yield _Turn(frozenset(together), 1)
            together, held = set(), 0
        together.add(partition)
        held += size_bytes
    if together:
        yield _Turn(frozenset(together), 1)


class _Superseded(NamedTuple):
    """The superseded records of a segment."""

    unit: SegmentFiles
    offsets: BitMap64


class _TurnWork(NamedTuple):
    """The segments of one turn, by their numbers, and the dirty ones among them."""

    spark: SparkSession
    segments: Sequence[SegmentFiles]
    numbers: Sequence[int]
    dirty: Sequence[SegmentFiles]
    find_keys: FindKeys

    def at_once(self, clean: Clean[R], fold: Fold[R]) -> list[R]:
        """Clean each segment by the whole map."""
        return self._with_map(_Share(0, 1), partial(_clean_by_map, clean), fold)

    def by_share(self, turn: _Turn, clean: Clean[R], fold: Fold[R]) -> list[R]:
        """Find what each share of the map supersedes, then clean each segment by that."""
        superseded = [BitMap64() for _ in self.numbers]
        for turn_number in range(turn.shares):
            share = _Share(turn_number, turn.shares)
            of_share = self._with_map(share, partial(_find_superseded, share))
            superseded = [one | more for one, more in zip(superseded, of_share, strict=True)]
        work = partial(_clean_by_offsets, clean)
        mine = [self.segments[number] for number in self.numbers]
        of_segments = [_Superseded(*of) for of in zip(mine, superseded, strict=True)]
        return self._in_tasks(work, of_segments, fold)

    def _with_map(
        self, share: _Share, work: Callable[..., R], fold: Fold[R] | None = None
    ) -> list[R]:
        """Run `work` with its partition's map on each segment by number; return the results."""
        keys = partial(_keys_of, self.find_keys, share)
        offset_maps = map_segments(
            self.spark, keys, self.dirty, count_rows(self.dirty), "maps keys of"
        )
        by_partition: dict[int, list[pa.Table]] = {
            self.segments[n].partition: [] for n in self.numbers
        }
        for unit, of_segment in zip(self.dirty, offset_maps, strict=True):
            by_partition[unit.partition].append(of_segment)
        maps = {partition: OffsetMap.of(tables) for partition, tables in by_partition.items()}
        log.info("mapped %s dirty keys", number(sum(len(of.keys) for of in maps.values())))
        with shared(self.spark, (maps, self.segments), self._rows) as known:
            return self._in_tasks(partial(_of_segment, known, work), self.numbers, fold)

    def _in_tasks(
        self, work: Callable[[Any], R], of_segments: Sequence[Any], fold: Fold[R] | None = None
    ) -> list[R]:
        return map_segments(self.spark, work, of_segments, self._rows, "judges", fold)

    @property
    def _rows(self) -> int:
        return count_rows([self.segments[number] for number in self.numbers])


def _keys_of(find_keys: FindKeys, share: _Share, unit: SegmentFiles) -> pa.Table:
    """Return the share's keys of a dirty segment; runs in a task."""
    keys = find_keys(unit)
    if share.shares == 1:
        return keys
    return keys.filter(pa.array(share.holds(keys["hash"].to_numpy())))


def _of_segment(
    known: Shared[tuple[dict[int, OffsetMap], Sequence[SegmentFiles]]],
    work: Callable[[OffsetMap, SegmentFiles], R],
    number: int,
) -> R:
    """Run `work` on one segment, in a task."""
    maps, segments = known.value
    return work(maps[segments[number].partition], segments[number])


def _clean_by_map(clean: Clean[R], offset_map: OffsetMap, unit: SegmentFiles) -> R:
    return clean(unit, lambda keys, offsets: offsets < offset_map.latest(keys))


def _find_superseded(share: _Share, offset_map: OffsetMap, unit: SegmentFiles) -> BitMap64:
    """Return the offsets of a segment's records that this share of the map supersedes."""
    rows = read_segment(unit, ("offset", "key")).table
    hashes = hash_keys(rows["key"].combine_chunks())
    is_mine = share.holds(hashes)
    rows, hashes = rows.filter(pa.array(is_mine)), hashes[is_mine]
    offsets = rows["offset"].to_numpy()
    latest = offset_map.latest(rows["key"], hashes)
    return BitMap64(offsets[offsets < latest].astype(np.uint64))


def _clean_by_offsets(clean: Clean[R], of_segment: _Superseded) -> R:
    superseded = np.frombuffer(of_segment.offsets.to_array(), np.int64)

    def is_superseded(_: pa.ChunkedArray, offsets: Int64s) -> Bools:
        return np.isin(offsets, superseded, assume_unique=True)

    return clean(of_segment.unit, is_superseded)
