"""Names of the files that ebbtide writes to its own tables.

A name has the job and a mark of its run. So a file that no snapshot needs is known as ebbtide's,
and whether its run has ended can be looked up. Files that Spark writes have names of Spark's.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import NamedTuple

from ebbtide.iceberg.commits import current_commits

_NAME = re.compile(
    r"ebbtide-(?P<job>[a-z_]+)-(?P<run>[0-9a-f]{16})-[0-9a-f]{32}(?:\.parquet|-deletes\.puffin)"
)


class Writer(NamedTuple):
    """The job that wrote a file, and the mark of its run."""

    job: str
    run: str


def run_mark(run_id: str) -> str:
    """Return a run id in the characters and length that a file name can have."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def new_file_name(ending: str) -> str:
    """Return a new file name with the job and run at work, or without them outside a job."""
    commits, unique = current_commits(), uuid.uuid4().hex + ending
    if commits is None or not commits.run_id:
        return unique
    return f"ebbtide-{commits.job}-{run_mark(commits.run_id)}-{unique}"


def writer_of(name: str) -> Writer | None:
    """Return the job and run that a file name has, or None if ebbtide did not choose the name."""
    match = _NAME.fullmatch(name)
    return Writer(match["job"], match["run"]) if match else None
