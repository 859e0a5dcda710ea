"""abandon_table: stops managing an adopted table; its rows are not changed."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.abandon_table import ABANDON_TABLE
from ebbtide.runner.application import run, run_job

main = partial(run, ABANDON_TABLE)


if __name__ == "__main__":
    sys.exit(run_job("abandon_table", main))
