"""Find superseded and keyless rows of an adopted table by its files' columns of keys.

As on a topic of ebbtide's own, dirty keys are mapped to their last offset, and the map is held
against all keys that it may hold; nothing else of a row is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.columns.keys import OffsetMap, last_of_each
from ebbtide.iceberg.adopted.file_scans import FileScan, KeyRange, Wanted
from ebbtide.iceberg.adopted.key_files import (
    KeyColumns,
    KeyFile,
    KeyRows,
    find_key_files,
    read_keys,
)
from ebbtide.iceberg.planned.planned_round import CleaningRound, PartitionRound
from ebbtide.log.adopted.layout import Column
from ebbtide.spark.tasks import Shared, map_segments, shared
from ebbtide.stages.clean_log.offset_map import (
    KEY_COPIES,
    MAP_BYTES,
    MAP_BYTES_SETTING,
    RECORD_BYTES,
)
from ebbtide.stores.store import Store
from ebbtide.text import number

SUPERSEDED, KEYLESS = "superseded", "keyless"

log = logging.getLogger(__name__)


class FoundRows(NamedTuple):
    """Rows of one file and partition that one rule removes."""

    file: str
    partition: int
    rule: str
    positions: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]


class ByKeys(NamedTuple):
    """The rows that keys tell to be removed, and the range of dirty keys if there are any."""

    found: Sequence[FoundRows]
    keys: KeyRange | None


class _Known(NamedTuple):
    """What the tasks of a round need to know."""

    store: Store
    columns: KeyColumns
    parts: Mapping[int, PartitionRound]
    maps: Mapping[int, OffsetMap]


def find_by_keys(scan: FileScan, this_round: CleaningRound) -> ByKeys | None:
    """Return superseded and keyless rows; None if only Iceberg's reader can read the files.

    So it is too if the map of dirty keys would take more memory than a setting allows.
    """
    columns = KeyColumns.of(scan)
    if columns is None:
        return None
    started, spark = time.monotonic(), scan.rows.spark
    firsts = [part.dirty[0] for part in this_round.partitions.values() if not part.is_idle]
    dirty = find_key_files(scan, Wanted(first_offset=min(firsts))) if firsts else []
    if dirty is None or _rows(dirty) * RECORD_BYTES > _limit(spark):
        return None
    known = _Known(scan.table.store, columns, this_round.partitions, {})
    maps = _maps(spark, known, dirty)
    if maps is None:
        return None
    keys = _key_range(maps.values(), scan.rows.layout.key)
    files = find_key_files(scan, Wanted(min(firsts, default=None), keys, has_no_key=True))
    if files is None:
        return None
    found = _found(spark, known._replace(maps=maps), files)
    if found is None:
        return None
    log.info("judged %s files by their keys in %.1f s", len(files), time.monotonic() - started)
    return ByKeys(found, keys)


def _maps(
    spark: SparkSession, known: _Known, dirty: Sequence[KeyFile]
) -> dict[int, OffsetMap] | None:
    """Return the last offset of each partition's dirty keys."""
    work = partial(_dirty_keys, known)
    of_files = map_segments(spark, work, dirty, _rows(dirty), "maps keys of")
    by_partition: dict[int, list[pa.Table]] = {}
    for of_file in of_files:
        if of_file is None:
            return None
        for partition, keys in of_file.items():
            by_partition.setdefault(partition, []).append(keys)
    key_bytes = sum(keys["key"].nbytes for of in by_partition.values() for keys in of)
    if key_bytes * KEY_COPIES > _limit(spark):
        return None
    maps = {}
    for partition, tables in by_partition.items():
        # A key's last row comes after its others, whichever file it is in.
        maps[partition] = OffsetMap.of([pa.concat_tables(tables).sort_by("offset")])
    log.info("mapped %s dirty keys", number(sum(len(of.keys) for of in maps.values())))
    return maps


def _dirty_keys(known: _Known, file: KeyFile) -> dict[int, pa.Table] | None:
    """Return `hash, key, offset` of each dirty key's last row in a file, in a task."""
    rows = read_keys(known.store, file, known.columns)
    if rows is None:
        return None
    found = {}
    for partition, mine in _by_partition(known, rows):
        part = known.parts[partition]
        if part.is_idle:
            continue
        first, end = part.dirty
        has_key = mine.keys.is_valid().to_numpy(zero_copy_only=False)
        dirty = mine.where((mine.offsets >= first) & (mine.offsets < end) & has_key)
        if not len(dirty.offsets):
            continue
        keys = pa.table({"key": dirty.keys, "offset": dirty.offsets}).sort_by("offset")
        found[partition] = last_of_each(keys)
    return found


def _found(spark: SparkSession, known: _Known, files: Sequence[KeyFile]) -> list[FoundRows] | None:
    rows = _rows(files)
    with shared(spark, known, rows) as of_all:
        of_files = map_segments(spark, partial(_judged, of_all), files, rows, "judges keys of")
    if any(of_file is None for of_file in of_files):
        return None
    return [group for of_file in of_files for group in of_file or ()]


def _judged(of_all: Shared[_Known], file: KeyFile) -> list[FoundRows] | None:
    """Return a file's superseded and keyless rows, in a task."""
    known = of_all.value
    rows = read_keys(known.store, file, known.columns)
    if rows is None:
        return None
    found = []
    for partition, mine in _by_partition(known, rows):
        is_keyless = mine.keys.is_null().to_numpy(zero_copy_only=False)
        by_rule = {KEYLESS: is_keyless}
        if (offset_map := known.maps.get(partition)) is not None:
            latest = offset_map.latest(pa.chunked_array([mine.keys]))
            by_rule[SUPERSEDED] = (mine.offsets < latest) & ~is_keyless
        for rule, leaves in by_rule.items():
            if leaves.any():
                positions, offsets = mine.positions[leaves], mine.offsets[leaves]
                places = (positions.astype(np.uint64), offsets.astype(np.uint64))
                found.append(FoundRows(file.path, partition, rule, *places))
    return found


def _by_partition(known: _Known, rows: KeyRows) -> Iterator[tuple[int, KeyRows]]:
    """Yield the rows of each partition that the round covers."""
    for partition in np.unique(rows.partitions).tolist():
        if (part := known.parts.get(partition)) is not None:
            is_covered = (rows.offsets >= part.log_start_offset) & (
                rows.offsets < part.first_uncleanable_offset
            )
            yield partition, rows.where((rows.partitions == partition) & is_covered)


def _limit(spark: SparkSession) -> int:
    """Return how many bytes a map of dirty keys may take."""
    return int(spark.conf.get(MAP_BYTES_SETTING, str(MAP_BYTES)) or MAP_BYTES)


def _rows(files: Iterable[KeyFile]) -> int:
    return sum(file.record_count for file in files)


def _key_range(maps: Iterable[OffsetMap], key: Column | None) -> KeyRange | None:
    """Return the least and the greatest dirty key as the table's column has them, if any."""
    ends = [pc.min_max(offset_map.keys).as_py() for offset_map in maps if len(offset_map.keys)]
    if not ends:
        return None
    least, greatest = min(end["min"] for end in ends), max(end["max"] for end in ends)
    if key is not None and key.type == "string":
        return KeyRange(least.decode(), greatest.decode())
    return KeyRange(least, greatest)
