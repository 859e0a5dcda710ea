"""adopt_table: recognises another tool's table and makes it a topic."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.adopt_table import ADOPT_TABLE
from ebbtide.runner.application import run, run_job

main = partial(run, ADOPT_TABLE)


if __name__ == "__main__":
    sys.exit(run_job("adopt_table", main))
