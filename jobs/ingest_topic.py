"""ingest_topic: appends new records of live topics to the tables."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.ingest_topic import INGEST_TOPIC
from ebbtide.runner.application import run, run_job

main = partial(run, INGEST_TOPIC)


if __name__ == "__main__":
    sys.exit(run_job("ingest_topic", main))
