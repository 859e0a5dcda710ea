"""Merge the files of small neighbouring physical segments within one closed logical segment.

A round merges logical segments, as Kafka's does, but moves no row. Without this merge, each nightly
run would add a small file to both tables. Order: plan written to the state, records, batches,
state.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import SegmentFiles, count_rows, read_segment, write_rows
from ebbtide.iceberg.file_commits import (
    Commit,
    PlannedRewrite,
    Replacement,
    planned_rewrites,
    prepare_rewrite,
)
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.in_flight import Merge, is_open, last_merge, open_merge, open_round, open_undo
from ebbtide.iceberg.manifests import current_files
from ebbtide.iceberg.segment_planning import plan_with_lineage
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
)
from ebbtide.iceberg.work_tags import WorkTag, is_committed, release_tags
from ebbtide.spark.tasks import map_segments
from ebbtide.state.logical_segments import neighbours_to_merge
from ebbtide.state.topic_state import MERGE

log = logging.getLogger(__name__)

# A merge waits for this many small neighbours, so that a row is rewritten rarely, not nightly.
AT_LEAST = 8


def merge_segments(topic: Topic, at_least: int = AT_LEAST) -> int:
    """Merge small neighbouring segments. Return by how many the physical segments decrease."""
    topic = finish_merge(topic)
    groups = _find_groups(topic, at_least)
    if not groups:
        return 0
    merge = Merge.new(groups)
    log.info("merging %d groups of small segments", sum(map(len, groups.values())))
    started = compare_and_set(topic, Step.MERGE_STARTED, partial(_started, topic, merge))
    if open_merge(started) != merge:
        return 0  # a round, a merge or an undo began first; a later run merges
    finish_merge(started)
    return sum(len(group) - 1 for partition_groups in groups.values() for group in partition_groups)


def _started(planned: Topic, merge: Merge, current: Topic) -> PropertyChanges | None:
    is_free = open_round(current) is None and last_merge(current) == last_merge(planned)
    is_free &= open_undo(current.properties) is None
    return {MERGE: merge.to_json()} if is_free else None


def finish_merge(topic: Topic) -> Topic:
    """Finish the merge in flight, if there is one. Return the topic afterwards."""
    spark, name = topic.spark, topic.name
    merge = open_merge(topic)
    if merge is None:
        # A killed job may have left its tags.
        release_tags(spark, (name.records_table, name.batches_table), partial(is_open, topic))
        return topic
    for step, table, by in (
        (Step.MERGE_RECORDS, name.records_table, "offset"),
        (Step.MERGE_BATCHES, name.batches_table, "base_offset"),
    ):
        if not is_committed(spark, table, _tag(merge)):
            prepared = _prepare(topic, table, by, merge)
            if prepared is not None:
                commit(step, prepared)
    topic = set_counted(topic, Step.MERGE_STATE, partial(_finished, merge))
    release_tags(spark, (name.records_table, name.batches_table), partial(is_open, topic))
    return topic


def _tag(merge: Merge) -> WorkTag:
    return WorkTag("merge", merge.id)


def _finished(merge: Merge, current: Topic) -> PropertyChanges | None:
    last = last_merge(current)
    return (
        {MERGE: replace(merge, groups={}).to_json()}
        if last is not None and last.id == merge.id
        else None
    )


def _find_groups(topic: Topic, at_least: int) -> dict[int, list[list[int]]]:
    """Return the neighbours to merge in each partition, from manifests alone."""
    target_bytes = topic.config.merge_target_bytes
    states, name = topic.partitions, topic.name
    sizes: dict[int, Counter[int]] = {}
    for table in (name.records_table, name.batches_table):
        for file in current_files(open_table(topic.spark, table)):
            if file.is_data:
                place = file.partition
                segment_bytes = sizes.setdefault(place["partition"], Counter())
                segment_bytes[place["segment"]] += file.size_bytes
    groups = {
        partition: neighbours_to_merge(
            sorted(sizes.get(partition, {}).items()),
            [base for base, _ in state.segments],
            target_bytes,
            at_least,
        )
        for partition, state in states.items()
    }
    return {partition: of_partition for partition, of_partition in groups.items() if of_partition}


def _prepare(topic: Topic, table: str, by: str, merge: Merge) -> Commit | None:
    """Write the merged files of one table and return their commit, or None if all are merged."""
    spark = topic.spark
    if current_snapshot(spark, table) is None:
        return None
    segments = {
        (p, base) for p, groups in merge.groups.items() for group in groups for base in group
    }
    planned = plan_with_lineage(spark, table, segments)
    by_place = {(unit.partition, unit.segment): unit for unit in planned}
    units = list(
        filter(
            None,
            (
                _as_one(by_place, p, g)
                for p, partition_groups in merge.groups.items()
                for g in partition_groups
            ),
        )
    )
    if not units:
        return None
    work = planned_rewrites(spark, table, units)
    written = map_segments(spark, partial(_write_as_one, by), work, count_rows(units), "merging")
    return prepare_rewrite(spark, table, segments, written, {MERGE: merge.id}, _tag(merge))


def _as_one(
    by_place: Mapping[tuple[int, int], SegmentFiles], partition: int, group: list[int]
) -> SegmentFiles | None:
    """Return a group's files as those of its first segment, or None if they already are."""
    members = [by_place[partition, base] for base in group if (partition, base) in by_place]
    if all(member.segment == group[0] for member in members):
        return None
    files = tuple(file for member in members for file in member.files)
    return members[0]._replace(segment=group[0], files=files)


def _write_as_one(by: str, planned: PlannedRewrite) -> Replacement:
    """Write a group's live rows to one file, in a task."""
    unit, path = planned
    rows = read_segment(unit, None, by).table
    if not rows.num_rows:
        return Replacement(unit, None)
    at = rows.schema.get_field_index("segment")
    segments = pa.array(np.full(rows.num_rows, unit.segment, np.int64))
    write_rows(unit.store, path, rows.set_column(at, rows.field(at), segments))
    return Replacement(unit, path)
