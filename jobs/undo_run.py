"""undo_run: restores what a run removed; later runs of the same partitions are undone with it."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.undo_run.stage import UNDO_RUN
from ebbtide.runner.application import run, run_job

main = partial(run, UNDO_RUN)


if __name__ == "__main__":
    sys.exit(run_job("undo_run", main))
