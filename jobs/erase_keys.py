"""erase_keys: keys of a topic get tombstones; a cleaner round removes the records before them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import PlanError, RequestError
from ebbtide.iceberg.topics import load
from ebbtide.jobs.erase_keys.plan import ErasePlan, keys_of, plan_erase, typed_keys
from ebbtide.jobs.erase_keys.stage import execute_erase, plan_erase_adopted, prepare_and_plan
from ebbtide.jobs.unfinished import settle, settle_adopted
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, Parameters, PlannedJob
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Encoding, Erasure, digest_of_keys

KEYS_SHA256 = "keys_sha256"


class Request(NamedTuple):
    """What no plan keeps: the run, and where the keys are, which are typed in or in a file."""

    run_id: str
    keys_file: str | None

    def erasure(self, asked: Parameters, now_ms: int) -> Erasure:
        """Return the erasure with its keys."""
        encoding = Encoding(asked["encoding"])
        return Erasure(
            run_id=self.run_id,
            now_ms=now_ms,
            requested_by=asked["requested_by"],
            reason=asked["reason"],
            keys=typed_keys(encoding),
            keys_file=self.keys_file,
            encoding=encoding,
            connection=asked["connection"],
            appends=asked["append"],
            timeout_ms=asked["timeout_ms"],
        )

    def resolve(self, session: SparkSession, _: TopicName, order: Order) -> Parameters:
        """Return what is asked, with a digest in place of the keys."""
        keys = keys_of(session, self.erasure(order.parameters, order.now_ms))
        return {**order.parameters, "keys": len(keys), KEYS_SHA256: digest_of_keys(keys)}

    def propose(self, session: SparkSession, name: TopicName, order: Order) -> ErasePlan:
        """Plan the erasure; PlanError where the keys are not those of the plan."""
        erasure = self.erasure(order.parameters, order.now_ms)
        if order.bounds is not None:
            check_keys(keys_of(session, erasure), order.parameters)
        topic = load(session, name)
        if topic.is_adopted:
            topic = settle_adopted(topic, order.now_ms, is_plan_only=order.is_plan_only)
            return plan_erase_adopted(topic, erasure, order.bounds)
        if order.is_plan_only:
            topic = settle(topic, "erase_keys", is_plan_only=True)
            return plan_erase(topic, erasure, keeps_offsets=order.keeps_offsets)
        return prepare_and_plan(session, name, erasure, keeps_offsets=order.keeps_offsets)


def check_keys(keys: Sequence[bytes], planned: Parameters) -> None:
    if digest_of_keys(keys) != planned[KEYS_SHA256]:
        raise PlanError(
            f"expected the {planned['keys']} keys that the plan was made for, found {len(keys)} "
            "others: a plan keeps no keys, so they are given again; give the same ones"
        )


def check(args: Namespace) -> None:
    if (named := len(args.topic or args.plan)) > 1:
        raise RequestError(f"expected one topic, whose keys they are, found {named}")
    if not args.plan:
        typed_keys(Encoding(args.encoding))


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("erase_keys", argv, check)
    names = ("requested_by", "reason", "encoding", "connection", "append", "timeout_ms")
    asked = {name: getattr(args, name) for name in names}
    request = Request(args.run_id, args.keys_file)
    spark = SparkSession.builder.appName("erase_keys").getOrCreate()
    job = PlannedJob(request.propose, execute_erase, is_by_hand=True, resolve=request.resolve)
    return run_planned(spark, args, job, dict.fromkeys(args.topic, asked))


if __name__ == "__main__":
    sys.exit(run_job("erase_keys", main))
