"""hold_records: makes, changes and ends holds on records of a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.json_text import MAX_INT, MAX_LONG, whole_argument
from ebbtide.log.requests.erase_request import Encoding, decode_keys
from ebbtide.log.requests.hold_request import CONDITIONS, KEYS, WORDS, Action, hashes_of
from ebbtide.runs.application import run_job
from ebbtide.runs.plan_arguments import parse_planned, planned_parser
from ebbtide.runs.planned_jobs import run_planned
from ebbtide.stages.hold_records.stage import HOLD_RECORDS

NUMBERS = {"partition": MAX_INT, "first_offset": MAX_LONG, "end_offset": MAX_LONG}


def main(argv: Sequence[str] | None = None) -> int:
    parser = planned_parser("hold_records", __doc__ or "")
    parser.add_argument("--action", choices=[str(action) for action in Action])
    parser.add_argument("--hold", metavar="ID", help="the hold to change or to end")
    for name in (*CONDITIONS, *WORDS):
        kind = whole_argument(most=NUMBERS[name]) if name in NUMBERS else str
        parser.add_argument("--" + name.replace("_", "-"), type=kind)
    parser.add_argument(
        "--encoding",
        choices=[str(encoding) for encoding in Encoding],
        default=str(Encoding.UTF_8),
        help=f"of the keys in {KEYS}, one a line",
    )
    args = parse_planned(parser, argv, ("topic", "now", "action"), ("hold", *CONDITIONS, *WORDS))
    asked = {name: getattr(args, name) for name in (*CONDITIONS, *WORDS)}
    asked |= {"action": args.action, "hold_id": args.hold}
    asked["by"] = args.triggered_by or args.requested_by
    if not args.plan:
        if (args.action == Action.MAKE) is bool(args.hold):
            parser.error("expected --hold to change or end one, and none to make one")
        try:
            keys = decode_keys(os.environ.get(KEYS, "").split("\n"), Encoding(args.encoding))
            asked["key_hashes"] = hashes_of(keys)
        except RequestError as error:
            parser.error(str(error))
    spark = SparkSession.builder.appName("hold_records").getOrCreate()
    return run_planned(spark, args, HOLD_RECORDS, dict.fromkeys(args.topic or (), asked))


if __name__ == "__main__":
    sys.exit(run_job("hold_records", main))
