"""export_segments: writes a topic's tables as segment files of a broker's log directory."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.log.settings.credentials import check_uri
from ebbtide.log.settings.names import TopicName
from ebbtide.numbers import MAX_INT, whole_argument
from ebbtide.runs.application import argument, job_parser, run_job, run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.export_segments.stage import Export, execute_export, plan_export
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("export_segments", __doc__ or "")
    parser.add_argument(
        "--target",
        required=True,
        type=argument(check_uri),
        metavar="URI",
        help="a directory to be",
    )
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        type=whole_argument(most=MAX_INT),
        help="only this; repeat for more",
    )
    args = parser.parse_args(argv)
    if len(args.topic) > 1:
        parser.error(f"expected one --topic, since it fills its target, found {len(args.topic)}")
    export = Export(args.target, args.run_id, tuple(args.partition))
    spark = SparkSession.builder.appName("export_segments").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "export_segments", is_plan_only=args.plan_only)
        plan = plan_export(topic, export)
        return plan.outcome() if args.plan_only else execute_export(plan)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("export_segments", main))
