"""abandon_table: takes away all that adopt_table has written; the table's rows stay."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.abandon_table import ABANDON_TABLE
from ebbtide.runner.application import run, run_job

main = partial(run, ABANDON_TABLE)


if __name__ == "__main__":
    sys.exit(run_job("abandon_table", main))
