"""What a topic's partitions hold by its tables' manifests, without opening a data file."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbtide.lake.live_files import files_of, referenced_data_file, vector_bytes
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.log.state.topic_summary import TopicSummary, summarize

if TYPE_CHECKING:
    from pyiceberg.table import Table

EVENT_TIME = "event_time"


@dataclass(slots=True)
class PartitionContents:
    """A partition's live records, bytes in files of both tables, and its oldest event.

    A file tells an event's time after its record was deleted, until it is rewritten or empty.
    """

    records: int = 0
    file_bytes: int = 0
    oldest_event_ms: int | None = None


def count_contents(records: Table, batches: Table) -> dict[int, PartitionContents]:
    """Return the contents of each partition that has files; each manifest is read once."""
    contents: defaultdict[int, PartitionContents] = defaultdict(PartitionContents)
    _add_records(contents, records)
    for file in files_of(batches):
        contents[file.partition[0]].file_bytes += file.file_size_in_bytes
    return dict(contents)


def contents_of_state(state: PartitionState) -> PartitionContents:
    """Return what the last night found in a partition of an adopted table."""
    return PartitionContents(
        records=sum(sums.record_count for sums in state.sums),
        file_bytes=sum(sums.size_bytes for sums in state.sums),
    )


def summarize_contents(
    config: TopicConfig,
    states: Mapping[int, PartitionState],
    contents: Mapping[int, PartitionContents],
) -> TopicSummary:
    """Return a topic in a few numbers; manifests do not tell which of its records are dirty."""
    oldest = (of_partition.oldest_event_ms for of_partition in contents.values())
    return summarize(
        config,
        states,
        {(p, sys.maxsize): of_partition.records for p, of_partition in contents.items()},
        sum(of_partition.file_bytes for of_partition in contents.values()),
        partitions={},
        topic={},
        oldest_event_ms=min((ms for ms in oldest if ms is not None), default=None),
    )


def _add_records(contents: Mapping[int, PartitionContents], table: Table) -> None:
    from pyiceberg.manifest import DataFileContent

    event_time = table.schema().find_field(EVENT_TIME).field_id
    data: list[Any] = []
    deleted: dict[str, int] = {}
    for file in files_of(table):
        partition = contents[file.partition[0]]
        if file.content == DataFileContent.DATA:
            data.append(file)
            partition.file_bytes += file.file_size_in_bytes
        else:
            deleted[referenced_data_file(file)] = file.record_count  # may outlive its data file
            partition.file_bytes += vector_bytes(file)  # its file holds those of others too
    for file in data:
        partition = contents[file.partition[0]]
        records = file.record_count - deleted.get(file.file_path, 0)
        partition.records += records
        if records:
            _add_event(partition, file.lower_bounds.get(event_time))


def _add_event(partition: PartitionContents, lower_bound: bytes | None) -> None:
    """Take a file's smallest event time into account: microseconds, little-endian."""
    if lower_bound is not None:
        ms = int.from_bytes(lower_bound, "little", signed=True) // 1000
        oldest = partition.oldest_event_ms
        partition.oldest_event_ms = ms if oldest is None else min(oldest, ms)
