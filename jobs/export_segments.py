"""export_segments: writes a topic's tables as segment files of a broker's log directory."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.export_segments import EXPORT_SEGMENTS
from ebbtide.runner.application import run, run_job

main = partial(run, EXPORT_SEGMENTS)


if __name__ == "__main__":
    sys.exit(run_job("export_segments", main))
