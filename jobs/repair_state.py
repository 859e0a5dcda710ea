"""repair_state: rolls back a foreign change of a topic, or accepts it and rebuilds the state."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.repair_state import REPAIR_STATE
from ebbtide.runner.application import run, run_job

main = partial(run, REPAIR_STATE)


if __name__ == "__main__":
    sys.exit(run_job("repair_state", main))
