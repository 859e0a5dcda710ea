"""mark_tombstones: finds the tombstones among the records not marked yet (KIP-87)."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.mark_tombstones import MARK_TOMBSTONES
from ebbtide.runner.application import run, run_job

main = partial(run, MARK_TOMBSTONES)


if __name__ == "__main__":
    sys.exit(run_job("mark_tombstones", main))
