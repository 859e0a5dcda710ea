"""erase_keys: appends tombstones for keys; a cleaner round removes the keys' older records."""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.jobs.erase_keys.stage import ERASE_KEYS
from ebbtide.runner.application import run, run_job

main = partial(run, ERASE_KEYS)


if __name__ == "__main__":
    sys.exit(run_job("erase_keys", main))
