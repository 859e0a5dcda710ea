"""Iceberg's sink for Kafka Connect writes on while its tables are compacted and maintained."""

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
from tests.writers.shapes import CONNECT_NESTED, WrittenTable

pytestmark = pytest.mark.broker


@pytest.mark.long
def test_two_nights_beside_a_sink_lose_and_double_nothing(
    sandbox: LakeSandbox,
    cluster: str,
    jobs: Jobs,
    broker: KafkaBroker,
    topic: str,
    connect_jars: Path,
    tmp_path: Path,
) -> None:
    """One table of each format; the third night finds the writers at rest."""
    spark = sandbox.session
    tables = [
        WrittenTable("raw.two", CONNECT_NESTED, 2, "bucket(2, id)"),
        WrittenTable("raw.three", CONNECT_NESTED, 3),
    ]
    for table in tables:
        table.create(spark)
    names = [table.name for table in tables]
    defaults = sandbox.home / "conf" / "spark-defaults.conf"
    nights, writers = Nights(jobs, tables), Writers(spark, tables)
    with (
        Producing(broker, topic, FRESH_SEED) as producing,
        ConnectSink(
            tmp_path, broker.bootstrap_servers, sink_settings(defaults, topic, names)
        ) as sink,
    ):
        writers.wait_for_commits(1)
        nights.adopt()
        with Maintenance(spark, names, FRESH_SEED) as maintenance:
            for _ in range(2):
                nights.run()
                writers.wait_for_commits(1)
            records = producing.stop()
            writers.wait_for_rows(records)
            maintenance.stop()
        nights.run()
        assert sink.states() == ["RUNNING", "RUNNING"]
        assert sink.failures() == []
    compare(spark, tables, records, nights.run_ids)
    print(f"{dict(maintenance.done)}, overtaken {dict(maintenance.overtaken)}")
    print(f"{sink.retries()} commits that Iceberg's client tried again")
    assert maintenance.done.keys() == set(PROCEDURES)
    assert not any(orphan.exists() for orphan in maintenance.orphans)
