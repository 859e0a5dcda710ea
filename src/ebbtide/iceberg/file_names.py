"""Names of the files that ebbtide writes to its own tables.

A name has the job, a mark of its run and one of the table. So a file that no snapshot needs is
known as ebbtide's and as this table's, and whether its run has ended can be looked up. Files that
Spark writes have names of Spark's.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import NamedTuple

from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.commits import current_commits

_NAME = re.compile(
    r"ebbtide-(?P<job>[a-z_]+)-(?P<run>[0-9a-f]{16})-(?P<table>[0-9a-f]{8})-[0-9a-f]{32}(?:\.parquet|-deletes\.puffin)"
)


class Writer(NamedTuple):
    """The job that wrote a file, and the marks of its run and of the table that it is for."""

    job: str
    run: str
    table: str


def run_mark(run_id: str) -> str:
    """Return a run id in the characters and length that a file name can have."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def table_mark(table: Table) -> str:
    """Return the beginning of the table's id: other tables may be below its location."""
    return table.metadata.uuid[:8]


def new_file_name(table: Table, ending: str) -> str:
    """Return a new file name with the job and run at work, or without them outside a job."""
    commits, unique = current_commits(), uuid.uuid4().hex + ending
    if commits is None or not commits.run_id:
        return unique
    return f"ebbtide-{commits.job}-{run_mark(commits.run_id)}-{table_mark(table)}-{unique}"


def writer_of(name: str) -> Writer | None:
    """Return the job and run that a file name has, or None if ebbtide did not choose the name."""
    match = _NAME.fullmatch(name)
    return Writer(*match.groups()) if match else None
