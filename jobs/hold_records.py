"""hold_records: makes, changes and ends holds on records of a topic."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.hold_records import HOLD_RECORDS
from ebbtide.runner.application import run, run_job

main = partial(run, HOLD_RECORDS)


if __name__ == "__main__":
    sys.exit(run_job("hold_records", main))
