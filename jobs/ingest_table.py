"""ingest_table: copies the new rows of another tool's tables to topics of ebbtide."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.ingest_table import INGEST_TABLE
from ebbtide.runner.application import run, run_job

main = partial(run, INGEST_TABLE)


if __name__ == "__main__":
    sys.exit(run_job("ingest_table", main))
