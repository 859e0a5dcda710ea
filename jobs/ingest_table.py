"""ingest_table: copies the new rows of tables that others write to topics of ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.adopted.copied_topics import copied_topics
from ebbtide.log.adopted.layout import Choices
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import argument, job_parser, run_job, run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.ingest_table.source import TableSource
from ebbtide.stages.ingest_table.stage import ingest_table
from ebbtide.stages.mark_tombstones.quarantine import RunOf

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "topic", "headers")


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("ingest_table", __doc__ or "", has_topics=False)
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=argument(TopicName.parse),
        metavar="CLUSTER.TOPIC",
        help="a topic to copy to; repeat for more; else all that have been copied to before",
    )
    parser.add_argument(
        "--source",
        type=argument(TopicName.parse),
        metavar="[CATALOG:]NAMESPACE.TABLE",
        help="the table, for one topic; later runs know it",
    )
    parser.add_argument("--source-topic", default="", help="which of the table's topics")
    parser.add_argument("--profile", default="", help="the layout's name; else it is recognised")
    for part in COLUMNS:
        parser.add_argument(f"--{part}-column", default="", metavar="NAME", help=f"the {part}'s")
    parser.add_argument("--tombstone", default="", metavar="COLUMN=VALUE", help="marks one")
    args = parser.parse_args(argv)
    chosen = {part: getattr(args, f"{part}_column") for part in COLUMNS}
    choices = Choices(**chosen, tombstone=args.tombstone)
    source = TableSource(args.now, args.source, choices, args.profile, args.source_topic)
    if (source.name is not None or any(choices)) and len(args.topic) != 1:
        parser.error("expected one --topic with --source or columns")
    spark = SparkSession.builder.appName("ingest_table").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        run = RunOf(args.run_id, args.now)
        return ingest_table(session, name, source, run, is_plan_only=args.plan_only)

    return run_topics(spark, args, args.topic or copied_topics(spark), work)


if __name__ == "__main__":
    sys.exit(run_job("ingest_table", main))
