"""ingest_table: copies new rows of another tool's tables to ebbtide's topics."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.ingest_table import INGEST_TABLE
from ebbtide.runner.application import run, run_job

main = partial(run, INGEST_TABLE)


if __name__ == "__main__":
    sys.exit(run_job("ingest_table", main))
