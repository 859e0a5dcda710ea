"""expire_segments: retention by size, wall clock and event time (KIP-870)."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.expire_segments import EXPIRE_SEGMENTS
from ebbtide.runner.application import run, run_job

main = partial(run, EXPIRE_SEGMENTS)


if __name__ == "__main__":
    sys.exit(run_job("expire_segments", main))
