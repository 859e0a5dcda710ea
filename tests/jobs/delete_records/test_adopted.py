"""DeleteRecords on a table that others write."""

import json

import pytest

from ebbtide.errors import RequestError
from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import AtOffset, AtTime, CommittedBy, TopicRequest
from jobs import delete_records
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, spark_table
from tests.tables.nights import answer_request, at
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


@pytest.mark.long
def test_a_time_is_the_first_record_at_or_after_it(sandbox: LakeSandbox, cluster: str) -> None:
    """A record below the log start is not found, nor one without a time; older ones stay behind."""
    spark, name = sandbox.session, TopicName(cluster, "t")
    spark_table(spark, str(name))
    times = {2: 90, 3: 10, 5: 30, 6: 20, 8: 40, 9: 0}
    rows = [Record(offset, "k", "v", p, ms) for p in (0, 1, 2) for offset, ms in times.items()]
    append(spark, str(name), [*rows, Record(6, "k", "v", 0, 20)])
    without_time = "SET timestamp = null WHERE offset = 9 AND `partition` = 0"
    spark.sql(f"UPDATE {name.records_table} {without_time}")
    adopt(spark, str(name), {"kafka.cleanup.policy": "delete"})
    answer_request(spark, name, TopicRequest({0: AtOffset(3)}), 1_000)
    asked = TopicRequest({0: AtTime(25), 1: AtTime(41), 2: AtTime(91), 7: AtTime(1)})
    planned = answer_request(spark, name, asked, 1_000, plan_only=True).partitions
    assert {p: numbers["requested_offset"] for p, numbers in planned.items()} == {
        0: 5,
        1: 2,
        2: -1,
        7: 0,
    }
    assert [planned[p]["older_kept"] for p in (0, 1, 2)] == [3, 5, 0]
    assert planned[7]["error_name"] == "UNKNOWN_TOPIC_OR_PARTITION"
    with pytest.raises(RequestError, match="expected a connection for the groups"):
        answer_request(spark, name, TopicRequest({0: CommittedBy(("g",), None)}), 1_000)
    assert live(spark, str(name), "offset")[:3] == [2, 2, 3]
    answer_request(spark, name, asked, 1_000)
    assert live(spark, str(name), "offset") == [2, 3, 5, 5, 6, 6, 6, 8, 8, 9, 9]
