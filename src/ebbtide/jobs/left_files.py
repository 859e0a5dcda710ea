"""Files of an own topic's tables that no snapshot needs; those that ebbtide wrote are deleted.

A job that was killed, or whose commit lost a race, leaves files that it never committed. A file
that no snapshot needs is deleted only if its name, `runs` and its age allow it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow.fs

from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.file_commits import Writer, run_mark, table_mark, writer_of
from ebbtide.iceberg.manifests import all_sizes
from ebbtide.iceberg.own_tables import read_own
from ebbtide.iceberg.topics import Topic
from ebbtide.ledger.own_tables import RUNS, Run
from ebbtide.moments import machine_clock
from ebbtide.runner.runs_table import LONGEST_RUN
from ebbtide.settings.names import TopicName
from ebbtide.stores.store import file_name
from ebbtide.text import number, size

log = logging.getLogger(__name__)

# No younger file is deleted, whatever its name and `runs` say. More than LONGEST_RUN.
SAFE_AGE = timedelta(days=3)
_ENDINGS = (".parquet", ".orc", ".puffin")  # metadata is Iceberg's to delete


class LeftFiles(NamedTuple):
    """Files that no snapshot needs: those that were deleted, and those that are still there."""

    deleted: int = 0
    bytes_deleted: int = 0
    waiting: int = 0  # ebbtide's: younger than SAFE_AGE, or `runs` does not show that the run ended
    others: int = 0  # with a name that ebbtide does not give


class _LeftFile(NamedTuple):
    info: pyarrow.fs.FileInfo
    writer: Writer | None

    @property
    def at(self) -> datetime:
        """The time at which it was written, by the store's clock."""
        written: datetime = self.info.mtime
        return written


def delete_left_files(topic: Topic, tables: Iterable[str]) -> LeftFiles:
    """Delete the files that ended runs never committed to the topic's tables."""
    found = LeftFiles()
    for name in tables:
        of_table = _of_table(open_table(topic.spark, name), topic.name)
        found = LeftFiles(*map(sum, zip(found, of_table, strict=True)))
    return found


def _of_table(table: Table, name: TopicName) -> LeftFiles:
    listed = list(_listed(table))
    # The metadata is read after the listing, so that it has what was committed before it.
    newest = open_table(table.spark, table.name)
    needed = {file_name(path) for path in all_sizes(newest)} | _statistics(newest)
    left = [
        _LeftFile(info, writer_of(info.base_name))
        for info in listed
        if info.base_name not in needed
    ]
    own = [f for f in left if f.writer is not None and f.writer.table == table_mark(table)]
    runs = _runs_since(table, own)
    old = machine_clock() - SAFE_AGE
    ended = [file for file in own if file.at < old and _has_ended(file, runs, name)]
    for file in ended:
        _delete(table, file.info.path)
    freed_bytes = sum(file.info.size for file in ended)
    if ended:
        line = "deleted %s files of %s below %s: no snapshot needs them, and their runs have ended"
        log.info(line, number(len(ended)), size(freed_bytes), table)
    return LeftFiles(len(ended), freed_bytes, len(own) - len(ended), len(left) - len(own))


def _listed(table: Table) -> Iterator[pyarrow.fs.FileInfo]:
    for location in table.locations:
        for info in table.store.listed(location):
            if info.base_name.endswith(_ENDINGS):
                yield info


def _statistics(table: Table) -> set[str]:
    values = table.metadata.values
    return {
        file_name(file["statistics-path"])
        for kind in ("statistics", "partition-statistics")
        for file in values.get(kind, ())
    }


def _runs_since(table: Table, files: Collection[_LeftFile]) -> list[Run]:
    """Return the attempts of the files' jobs that may have run since the first file was written."""
    if not files:
        return []
    jobs = {file.writer.job for file in files if file.writer is not None}
    return read_own(table.spark, RUNS, "job", jobs, min(f.at for f in files) - LONGEST_RUN)


def _has_ended(file: _LeftFile, runs: Collection[Run], name: TopicName) -> bool:
    """Return whether `runs` shows that the file's run has ended.

    A killed attempt has no row. Its run has ended if a later attempt of the run has a row, or if a
    later run of the job has succeeded on the topic: that run has recovered the work in flight.
    """
    assert file.writer is not None
    of_job = [run for run in runs if run.job == file.writer.job]
    return any(
        (run_mark(run.run_id) == file.writer.run and run.ended > file.at)
        or (run.topic == str(name) and run.succeeded and run.started > file.at)
        for run in of_job
    )


def _delete(table: Table, path: str) -> None:
    location = str(table.metadata.values["location"])
    with suppress(FileNotFoundError), table.store.located(location) as (files, _):
        files.delete_file(path)
