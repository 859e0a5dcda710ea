"""delete_records: a DeleteRecords request on the tables (KIP-107)."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.delete_records.stage import DELETE_RECORDS
from ebbtide.runner.application import run, run_job

main = partial(run, DELETE_RECORDS)


if __name__ == "__main__":
    sys.exit(run_job("delete_records", main))
