"""Compare many random logs: `python -m tests.stages.clean_adopted --topics 10 --logs 20`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kafka.oracle import JARS
from tests.lake_sandbox import LakeSandbox
from tests.stages.clean_adopted.comparison import differences
from tests.stages.clean_adopted.random_logs import NIGHTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10, help="tables, of formats 2 and 3 in turn")
    parser.add_argument("--logs", type=int, default=20, help="logs of each, one a partition")
    parser.add_argument("--seed", type=int, default=0, help="of the first topic")
    args = parser.parse_args()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        spark = LakeSandbox(scratch / "home").session
        for seed in range(args.seed, args.seed + args.topics):
            version = 2 + seed % 2
            found += differences(spark, f"fuzz.t{seed}", seed, args.logs, scratch, JARS, version)
            print(f"topic {seed}, format {version}: {len(found)} differences so far", flush=True)
    print("\n".join(found))
    print(f"{args.topics * args.logs} logs x {NIGHTS} nights: {len(found)} differences")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
