"""repair_state: takes back what others did to a topic, or rebuilds its state from its tables."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.repair_state import REPAIR_STATE
from ebbtide.runner.application import run, run_job

main = partial(run, REPAIR_STATE)


if __name__ == "__main__":
    sys.exit(run_job("repair_state", main))
