"""erase_keys: keys of a topic get tombstones; a cleaner round removes the records before them."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.erase_keys.stage import ERASE_KEYS
from ebbtide.runner.application import run, run_job

main = partial(run, ERASE_KEYS)


if __name__ == "__main__":
    sys.exit(run_job("erase_keys", main))
