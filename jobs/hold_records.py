"""hold_records: makes, changes and ends holds on records of a topic."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.jobs.erase_keys.plan import keys_of_file
from ebbtide.jobs.hold_records import HOLD_RECORDS, resolve_hold
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, Parameters
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Encoding, decode_keys
from ebbtide.specs.hold_request import CONDITIONS, HOLD_KEYS, WORDS, Action, hashes_of


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


def check(args: Namespace) -> None:
    args.key_hashes = []
    if args.plan:
        return
    if (args.action == Action.MAKE) is bool(args.hold):
        raise RequestError("expected --hold to change or end one, and none to make one")
    keys = decode_keys(os.environ.get(HOLD_KEYS, "").split("\n"), Encoding(args.encoding))
    if keys and args.keys_file:
        raise RequestError("expected keys or a file of them, found both")
    args.key_hashes = hashes_of(keys)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("hold_records", argv, check)
    asked = {name: getattr(args, name) for name in (*CONDITIONS, *WORDS, "action")}
    asked |= {"hold_id": args.hold, "by": args.triggered_by or args.requested_by}
    asked["key_hashes"] = args.key_hashes
    spark = SparkSession.builder.appName("hold_records").getOrCreate()
    resolve = partial(with_keys_of_file, args.keys_file, Encoding(args.encoding))
    job = replace(HOLD_RECORDS, resolve=resolve)
    return run_planned(spark, args, job, dict.fromkeys(args.topic, asked))


if __name__ == "__main__":
    sys.exit(run_job("hold_records", main))
