"""Compare many random logs: `python -m tests.jobs.clean_adopted --topics 4 --logs 50`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.jobs.clean_adopted.comparison import Case, differences
from tests.jobs.clean_adopted.random_logs import NIGHTS
from tests.kafka.oracle import JARS
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted_layouts import LAYOUTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [layout.name for layout in LAYOUTS]
    parser.add_argument("--layout", action="append", choices=names, help="default: each")
    parser.add_argument("--topics", type=int, default=4, help="tables, of formats 2 and 3 in turn")
    parser.add_argument("--logs", type=int, default=50, help="logs of each, one a partition")
    parser.add_argument("--seed", type=int, default=0, help="of the first topic")
    args = parser.parse_args()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        spark = LakeSandbox(scratch / "home").session
        chosen = [layout for layout in LAYOUTS if layout.name in (args.layout or names)]
        for number, layout in enumerate(chosen):
            of_layout: list[str] = []
            for seed in range(args.seed, args.seed + args.topics):
                case = Case(layout, seed, args.logs, 2 + seed % 2)
                name = f"fuzz.t{number}-{seed}-"
                of_layout += differences(spark, [case], name, scratch / name, JARS)
            total = f"{args.topics * args.logs} logs x {NIGHTS} nights"
            print(f"{layout.name}: {total}: {len(of_layout)} differences", flush=True)
            found += of_layout
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
