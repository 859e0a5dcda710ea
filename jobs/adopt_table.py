"""adopt_table: recognises a table that others write, and keeps it as a topic from then on."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.log.adopted.layout import Choices
from ebbtide.log.settings.changes import parse_changes
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import job_parser, run_job, run_unchecked, to_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.adopt_table.stage import execute_adoption, plan_adoption

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "topic")


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("adopt_table", __doc__ or "")
    parser.add_argument("--profile", default="", help="the layout's name; else it is recognised")
    for part in COLUMNS:
        parser.add_argument(f"--{part}-column", default="", metavar="NAME", help=f"the {part}'s")
    parser.add_argument("--tombstone", default="", metavar="COLUMN=VALUE", help="marks one")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    try:
        settings = parse_changes(args.set, ())
    except ConfigurationError as error:
        parser.error(str(error))
    chosen = {part: getattr(args, f"{part}_column") for part in COLUMNS}
    choices = Choices(**chosen, tombstone=args.tombstone)
    spark = SparkSession.builder.appName("adopt_table").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        now_ms = to_ms(args.now)
        plan = plan_adoption(session, name, choices, settings, now_ms, profile=args.profile)
        return plan.outcome() if args.plan_only else execute_adoption(plan)

    return run_unchecked(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("adopt_table", main))
