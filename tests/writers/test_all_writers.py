"""Kafka Connect's sink and Structured Streaming write at once while two nights compact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_seed import FRESH_SEED
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.tables.planned import Jobs
from tests.writers.connect_sink import ConnectSink, sink_settings
from tests.writers.maintenance import PROCEDURES, Maintenance
from tests.writers.nights import Nights, Writers, compare
from tests.writers.producing import Producing
from tests.writers.shapes import CONNECT_FLAT, REDPANDA, SPARK_SOURCE, WrittenTable
from tests.writers.streaming import Streaming

pytestmark = pytest.mark.services

OF_CONNECT = [
    WrittenTable("raw.connect_two", CONNECT_FLAT, 2),
    WrittenTable("raw.connect_three", CONNECT_FLAT, 3, "bucket(2, id)"),
]
OF_SPARK = {
    "raw.spark_two": WrittenTable("raw.spark_two", SPARK_SOURCE, 2),
    "raw.spark_three": WrittenTable("raw.spark_three", SPARK_SOURCE, 3, "hours(timestamp)"),
    "raw.redpanda": WrittenTable("raw.redpanda", REDPANDA, 2, "hours(redpanda.timestamp)"),
}


def test_two_nights_beside_all_writers_lose_and_double_nothing(
    sandbox: LakeSandbox,
    jobs: Jobs,
    broker: KafkaBroker,
    topic: str,
    connect_jars: Path,
    tmp_path: Path,
) -> None:
    spark, tables = sandbox.session, [*OF_CONNECT, *OF_SPARK.values()]
    for table in tables:
        table.create(spark)
    settings = sink_settings(
        sandbox.home / "conf" / "spark-defaults.conf",
        topic,
        [table.name for table in OF_CONNECT],
        is_nested=False,
    )
    streams = {
        table.table: "redpanda" if table.shape is REDPANDA else "spark_source"
        for table in OF_SPARK.values()
    }
    nights, writers = Nights(jobs, tables), Writers(spark, tables)
    server = broker.bootstrap_servers
    with (
        Producing(broker, topic, FRESH_SEED) as producing,
        ConnectSink(tmp_path / "connect", server, settings) as sink,
        Streaming(tmp_path / "stream", server, sandbox, topic, streams) as streaming,
    ):
        writers.wait_for_commits(1)
        nights.adopt()
        with Maintenance(spark, [table.name for table in tables], FRESH_SEED) as maintenance:
            for _ in range(2):
                nights.run()
                writers.wait_for_commits(3)
            records = producing.stop()
            writers.wait_for_rows(records)
            streaming.end()
            maintenance.stop()
        nights.run()
        assert sink.states() == ["RUNNING", "RUNNING"]
        assert sink.failures() == []
    compare(spark, tables, records, nights.run_ids)
    print(f"{dict(maintenance.done)}, overtaken {dict(maintenance.overtaken)}")
    assert maintenance.done.keys() == set(PROCEDURES)
    assert not any(orphan.exists() for orphan in maintenance.orphans)
