"""replicate_log: copies missing records and batches to each replica of a topic."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.replicate_log import REPLICATE_LOG
from ebbtide.runner.application import run, run_job

main = partial(run, REPLICATE_LOG)


if __name__ == "__main__":
    sys.exit(run_job("replicate_log", main))
