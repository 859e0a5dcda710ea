"""erase_keys: keys of a topic get tombstones; a cleaner round removes the records before them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.topics import load
from ebbtide.log.requests.erase_request import Encoding, Erasure
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import job_parser, run_job, run_topics, to_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.erase_keys.held_keys import typed_keys
from ebbtide.stages.erase_keys.stage import erase_keys, plan_erase
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("erase_keys", __doc__ or "")
    parser.add_argument(
        "--keys-file", metavar="URI", help="text, one key a line; else in EBBTIDE_ERASE_KEYS"
    )
    parser.add_argument("--encoding", type=Encoding, choices=list(Encoding), default=Encoding.UTF_8)
    parser.add_argument("--requested-by", required=True, help="who asked for it")
    parser.add_argument("--reason", required=True, help="why")
    parser.add_argument("--connection", help="of the live topic; else the topic's own")
    parser.add_argument("--append", action="store_true", help="to a topic that nobody writes")
    parser.add_argument("--timeout-ms", type=int, default=600_000, help="until they arrive")
    args = parser.parse_args(argv)
    if len(args.topic) > 1:
        parser.error(f"expected one --topic, whose keys they are, found {len(args.topic)}")
    try:
        typed = typed_keys(args.encoding)
    except RequestError as error:
        parser.error(str(error))
    erasure = Erasure(
        run_id=args.run_id,
        now_ms=to_ms(args.now),
        requested_by=args.requested_by,
        reason=args.reason,
        keys=typed,
        keys_file=args.keys_file,
        encoding=args.encoding,
        connection=args.connection,
        appends=args.append,
        timeout_ms=args.timeout_ms,
    )
    spark = SparkSession.builder.appName("erase_keys").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        if args.plan_only:
            topic = settle(load(session, name), "erase_keys", is_plan_only=True)
            return plan_erase(topic, erasure).outcome()
        return erase_keys(session, name, erasure)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("erase_keys", main))
