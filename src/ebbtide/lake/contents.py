"""What a topic's partitions hold by its tables' manifests, without opening a data file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbtide.lake.live_files import files_of, referenced_data_file, vector_bytes
from ebbtide.lake.reader import Lake, reading_manifests
from ebbtide.log.state.topic_state import PartitionState

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


def read_contents(lake: Lake, name: str) -> Mapping[int, PartitionContents]:
    """Return the contents of each partition that has files; UnreadableTableError names the topic.

    Each manifest is read once. Of an adopted table, the state tells what it was at the last night.
    """
    if lake.is_adopted(name):
        return {p: _of_state(state) for p, state in lake.topic(name).partitions.items()}
    contents: defaultdict[int, PartitionContents] = defaultdict(PartitionContents)
    with reading_manifests(name):
        _add_records(contents, lake.records(name))
        for file in files_of(lake.batches(name)):
            contents[file.partition[0]].file_bytes += file.file_size_in_bytes
    return dict(contents)


def _of_state(state: PartitionState) -> PartitionContents:
    return PartitionContents(
        records=sum(of.record_count for of in state.sums),
        file_bytes=sum(of.size_bytes for of in state.sums),
    )


def oldest_event_ms(contents: Iterable[PartitionContents]) -> int | None:
    """Return the oldest of the partitions' events; None where none has any."""
    oldest = [of.oldest_event_ms for of in contents if of.oldest_event_ms is not None]
    return min(oldest, default=None)


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
