"""ingest_segments: appends a broker's log directory, or a copy of one, to the tables."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.ingest_segments.stage import INGEST_SEGMENTS
from ebbtide.runner.application import run, run_job

main = partial(run, INGEST_SEGMENTS)


if __name__ == "__main__":
    sys.exit(run_job("ingest_segments", main))
