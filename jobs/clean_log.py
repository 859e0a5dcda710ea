"""clean_log: one cleaner round on each log that is due for one (KIP-534)."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.clean_log.job import CLEAN_LOG
from ebbtide.runner.application import run, run_job

main = partial(run, CLEAN_LOG)


if __name__ == "__main__":
    sys.exit(run_job("clean_log", main))
