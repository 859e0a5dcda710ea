"""Work out what a cleaner round does to a topic, from the snapshots that the round pins.

Tasks judge batches and records, one segment each: first the dirty ones for the offset map, then
once all that the round covers. The driver holds what segments share: where transactions begin and
end, and each producer's last record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.log_headers import LogHeaders, LogOutline, Role
from ebbtide.columns.row_changes import RowChanges, changes_of
from ebbtide.iceberg.files.batch_rows import HEADERS_A_RECORD, look_at_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.planned.planned_round import CleaningRound
from ebbtide.iceberg.topics import Topic
from ebbtide.log.batch_header import Batch
from ebbtide.log.compaction import Round
from ebbtide.log.logical_segments import segment_of
from ebbtide.log.producers import carried, last_records
from ebbtide.log.transactions import transactions_around
from ebbtide.spark.job_log import log_partitions
from ebbtide.spark.tasks import map_segments, shared
from ebbtide.stages.clean_log.effect_numbers import (
    RoundEffect,
    UnitEffect,
    add_numbers,
    described,
)
from ebbtide.stages.clean_log.offset_map import map_with_superseded
from ebbtide.stages.clean_log.segment_round import (
    Known,
    PartitionRules,
    Unit,
    clean_unit,
    find_dirty_keys,
)
from ebbtide.stages.planned_rows import by_partition
from ebbtide.text import number

log = logging.getLogger(__name__)


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
    effect = RoundEffect(segments={p: of.segments for p, of in headers.items()})
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
