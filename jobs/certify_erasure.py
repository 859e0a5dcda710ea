"""certify_erasure: searches a topic's tables for keys, and signs what it found."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.certify_erasure.stage import CERTIFY_ERASURE
from ebbtide.runner.application import run, run_job

main = partial(run, CERTIFY_ERASURE)


if __name__ == "__main__":
    sys.exit(run_job("certify_erasure", main))
