"""configure_topic: changes settings, after showing what the next nightly run would remove."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.configure_topic import CONFIGURE_TOPIC
from ebbtide.runner.application import run, run_job

main = partial(run, CONFIGURE_TOPIC)


if __name__ == "__main__":
    sys.exit(run_job("configure_topic", main))
