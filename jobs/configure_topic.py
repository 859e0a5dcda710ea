"""configure_topic: checks settings, shows what the next run would remove, and sets them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.log.names import TopicName
from ebbtide.tables.application import job_parser, run_topics, to_ms
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.configure import execute_configure, plan_configure
from ebbtide.tables.topics import load


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("configure_topic", __doc__ or "")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--unset", action="append", default=[], metavar="NAME")
    args = parser.parse_args(argv)
    changes: dict[str, str | None] = dict.fromkeys(args.unset)
    changes |= dict(_parse_setting(text) for text in args.set)
    spark = SparkSession.builder.appName("configure_topic").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> Outcome:
        plan = plan_configure(load(session, name), changes, to_ms(args.now))
        return plan.outcome() if args.plan_only else execute_configure(plan)

    return run_topics(spark, args, args.topic, work)


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"expected NAME=VALUE for --set, found {text!r}")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
