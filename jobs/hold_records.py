"""hold_records: makes, changes and ends holds on records of a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.log.requests.erase_request import Encoding, decode_keys
from ebbtide.log.requests.hold_request import CONDITIONS, KEYS, WORDS, Action, hashes_of
from ebbtide.log.requests.words import VARIABLES
from ebbtide.log.settings.names import TopicName
from ebbtide.numbers import MAX_INT, MAX_LONG, whole_argument
from ebbtide.runs.application import run_job
from ebbtide.runs.plan_arguments import given, parse_planned, planned_parser
from ebbtide.runs.planned_jobs import run_planned
from ebbtide.runs.proposals import Order, Parameters
from ebbtide.stages.erase_keys.held_keys import keys_of_file
from ebbtide.stages.hold_records.stage import HOLD_RECORDS, resolve_hold

NUMBERS = {"partition": MAX_INT, "first_offset": MAX_LONG, "end_offset": MAX_LONG}


def with_keys_of_file(
    uri: str | None, encoding: Encoding, session: SparkSession, name: TopicName, order: Order
) -> Parameters:
    """Return what is asked, with the hashes of the file's keys; RequestError if it has none."""
    asked = order.parameters
    if uri:
        keys = keys_of_file(session, uri, encoding)
        if not keys:  # a hold without keys covers every key
            raise RequestError(f"expected keys in {uri}, one a line, found none")
        asked = {**asked, "key_hashes": hashes_of(keys)}
    return resolve_hold(session, name, order._replace(parameters=asked))


def main(argv: Sequence[str] | None = None) -> int:
    parser = planned_parser("hold_records", __doc__ or "")
    parser.add_argument("--action", choices=[str(action) for action in Action])
    parser.add_argument("--hold", metavar="ID", help="the hold to change or to end")
    for name in (*CONDITIONS, *WORDS):
        kind = whole_argument(most=NUMBERS[name]) if name in NUMBERS else str
        default = given(name) if name in VARIABLES else None
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=default)
    parser.add_argument("--keys-file", metavar="URI", help=f"text, one key a line; else in {KEYS}")
    parser.add_argument(
        "--encoding",
        choices=[str(encoding) for encoding in Encoding],
        default=str(Encoding.UTF_8),
        help="of the keys",
    )
    optional = ("hold", "keys_file", *CONDITIONS, *WORDS)
    args = parse_planned(parser, argv, ("topic", "now", "action"), optional)
    asked = {name: getattr(args, name) for name in (*CONDITIONS, *WORDS)}
    asked |= {"action": args.action, "hold_id": args.hold}
    asked["by"] = args.triggered_by or args.requested_by
    if not args.plan:
        if (args.action == Action.MAKE) is bool(args.hold):
            parser.error("expected --hold to change or end one, and none to make one")
        try:
            keys = decode_keys(os.environ.get(KEYS, "").split("\n"), Encoding(args.encoding))
            if keys and args.keys_file:
                raise RequestError("expected keys or a file of them, found both")
            asked["key_hashes"] = hashes_of(keys)
        except RequestError as error:
            parser.error(str(error))
    spark = SparkSession.builder.appName("hold_records").getOrCreate()
    resolve = partial(with_keys_of_file, args.keys_file, Encoding(args.encoding))
    job = replace(HOLD_RECORDS, resolve=resolve)
    return run_planned(spark, args, job, dict.fromkeys(args.topic or (), asked))


if __name__ == "__main__":
    sys.exit(run_job("hold_records", main))
