"""DeleteRecords on a table that others write."""

import json

from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from jobs import delete_records
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, spark_table
from tests.tables.nights import at
from tests.tables.planned import Jobs


def test_records_below_an_offset_leave(sandbox: LakeSandbox, cluster: str, jobs: Jobs) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(n, key) for n, key in enumerate("abcd")])
    policy = {"kafka.cleanup.policy": "compact,delete", "kafka.segment.ms": "1"}
    adopt(spark, name, policy)
    append(spark, name, [Record(4, "e"), Record(5, "a"), Record(0, "x", partition=1)])

    def ask(offset: int) -> int:
        partitions = [{"partition": 0, "offset": offset}]
        request = {"topics": [{"topic": name, "partitions": partitions}]}
        now = ("--now", at(10_000).isoformat())
        return jobs.run(delete_records, "--request", json.dumps(request), *now)

    assert ask(5) == 0  # the state has not seen offset 4 yet
    run = jobs.last_run()
    assert (run.partitions[0]["low_watermark"], run.rows_removed) == (5, 5)
    assert live(spark, name) == [0, 5]
    assert ask(9) != 0
    assert jobs.last_run().partitions[0]["error_name"] == "OFFSET_OUT_OF_RANGE"
    append(spark, name, [Record(2, "late"), Record(6, "a")])
    clean(spark, name, 20_000)
    assert live(spark, name) == [0, 2, 6]  # below the log start, no round judges
    assert ask(5) == 0
    assert live(spark, name) == [0, 6]
    assert load(spark, TopicName.parse(name)).partitions[0].log_start_offset == 5
