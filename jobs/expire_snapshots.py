"""expire_snapshots: expires snapshots, rewrites files and frees bytes."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.expire_snapshots import EXPIRE_SNAPSHOTS
from ebbtide.runner.application import run, run_job

main = partial(run, EXPIRE_SNAPSHOTS)


if __name__ == "__main__":
    sys.exit(run_job("expire_snapshots", main))
