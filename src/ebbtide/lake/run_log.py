"""Follow `lake.ebbtide.runs`: each of its files is opened once, however often somebody looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ebbtide.lake.live_files import of_a_store
from ebbtide.lake.reader import chosen
from ebbtide.log.attempts import ATTEMPT_COLUMNS, RUNS, Attempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import FileScanTask, Table

FILES_AT_ONCE = 8


@dataclass(slots=True)
class RunLog:
    """The files of `runs` that were read, of the table with this id, up to this snapshot.

    A file that compaction writes has rows of files before it: a row may come twice, with the same
    values.
    """

    table_id: str = ""
    snapshot_id: int | None = None
    files: set[str] = field(default_factory=set)

    def is_of(self, table: Table | None) -> bool:
        """Return whether it follows this table, and not one that was dropped since."""
        return self.table_id == ("" if table is None else str(table.metadata.table_uuid))

    def read_on(self, table: Table, since: datetime) -> Iterator[Attempt]:
        """Yield the rows of files not read yet that began at `since` or later, newest file last."""
        self.table_id = str(table.metadata.table_uuid)
        snapshot_id = table.metadata.current_snapshot_id
        if snapshot_id == self.snapshot_id:
            return
        with of_a_store(".".join(RUNS.place)):
            planned = list(table.scan(row_filter=chosen(RUNS.day, since, {})).plan_files())
            fresh = [task for task in planned if task.file.file_path not in self.files]
            for rows in _read(table, fresh):
                yield from map(RUNS.to_row, rows.to_pylist())
        # Only now, so that the next look repeats what failed.
        self.files = {task.file.file_path for task in planned}
        self.snapshot_id = snapshot_id


def _read(table: Table, tasks: Iterable[FileScanTask]) -> Iterator[pa.Table]:
    """Yield each file's rows, without results: pyiceberg's own scan takes five times as long."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        yield from pool.map(lambda task: _rows_of(table, task), tasks)


def _rows_of(table: Table, task: FileScanTask) -> Any:
    import pyarrow.parquet as pq

    if task.delete_files:
        return _rows_without_deleted(table, task)
    with table.io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
        names = [name for name in ATTEMPT_COLUMNS if name in file.schema_arrow.names]
        return file.read(columns=names)


def _rows_without_deleted(table: Table, task: FileScanTask) -> Any:
    """Read a file of which somebody has deleted rows."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema()
    names = [name for name in ATTEMPT_COLUMNS if name in schema.column_names]
    scan = ArrowScan(table.metadata, table.io, schema.select(*names), AlwaysTrue())
    return scan.to_table([task])
