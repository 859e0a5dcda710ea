"""Take one live topic from one broker by ingest_topic, and by Iceberg's sink for Kafka Connect.

    python -m benchmarks.ingest_topic [--records 1000000] [--runs 2]

`ours` is the stage ingest_topic into a new topic: records, batches, state. `connect` is a worker
with the sink and its metadata transform, two tasks and a commit every 2 seconds, from the request
for the sink to the commit of the last record. Each has taken a small topic before, in the same
process. Both write to a catalog of SQLite and to files on this disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.clean_log.contenders.kafka import JARS
from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.clean_log.data.home import BENCH, ROOT, environment, make_home
from benchmarks.ingest_segments.kept import Measured
from benchmarks.ingest_topic.kept import KeptTopic, line
from ebbtide.lake.catalog_settings import catalog_settings, open_catalog, read_defaults
from ebbtide.settings.names import CATALOG
from ebbtide.settings.upstream import CONNECTIONS
from tests.kafka.broker import KafkaBroker
from tests.writers.connect_sink import CONTROL_TOPIC, ConnectSink, sink_settings
from tests.writers.connect_sink import JARS as CONNECT_JARS

SMALL, LARGE = "small", "large"
SMALL_RECORDS = 20_000
PARTITIONS = 6
KEYS = 6_000
NOTE = "abcdefgh" * 8  # so that a value has about 100 bytes
TASKS = 2
RESULTS = ROOT / "benchmarks" / "results" / "ingest_topic"
AUTO_CREATED = {
    "iceberg.tables.auto-create-enabled": "true",
    "iceberg.tables.schema-force-optional": "true",
    "iceberg.tables.auto-create-props.format-version": "3",
}


def run(records: int, runs: int, home: Path, results: Path) -> None:
    """Produce the topics once, and let each of the two take them in turn, in a new lake."""
    shutil.rmtree(home, ignore_errors=True)
    make_home(home)
    with KafkaBroker(JARS, home / "broker", is_brief=False) as broker:
        topics = [NewTopic(topic, PARTITIONS, 1) for topic in (SMALL, LARGE)]
        _create(broker, [*topics, NewTopic(CONTROL_TOPIC, 1, 1)])
        _produce(broker, SMALL, SMALL_RECORDS)
        value_bytes = _produce(broker, LARGE, records)
        kept = KeptTopic.begun(results, records, value_bytes)
        for number in range(runs):
            for contender, take in (("ours", _ours), ("connect", _connect)):
                shutil.rmtree(home / "lake", ignore_errors=True)
                (home / "lake").mkdir()
                load = os.getloadavg()[0]
                taken = take(broker, home, records, f"{contender}-{number}")
                kept.add(Measured(contender, load, **taken))
                print(line(kept, kept.runs[-1]), flush=True)
    shutil.rmtree(home)


def _create(broker: KafkaBroker, topics: list[NewTopic]) -> None:
    admin = AdminClient(broker.client())
    for created in admin.create_topics(topics).values():
        created.result(timeout=30)


def _produce(broker: KafkaBroker, topic: str, records: int) -> int:
    """Records whose values are JSON; the bytes of all keys and values."""
    producer = Producer({**broker.client(), "linger.ms": "50", "compression.type": "zstd"})
    size = 0
    for number in range(records):
        key = f"UA{number % KEYS}"
        value = json.dumps({"id": key, "n": number, "note": NOTE})
        size += len(key) + len(value)
        producer.produce(topic, value, key, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.flush(120)
    assert producer.flush(120) == 0
    return size


def _ours(broker: KafkaBroker, home: Path, records: int, name: str) -> dict[str, Any]:
    """A process with Spark; it says itself what the large topic took."""
    command = [sys.executable, "-m", "benchmarks.ingest_topic.in_spark", str(records)]
    connections = {CONNECTIONS: json.dumps({"main": broker.client()})}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment(home), **connections},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _connect(broker: KafkaBroker, home: Path, records: int, name: str) -> dict[str, Any]:
    """A worker with a sink for the small topic, and then with one for the large topic."""
    subprocess.run(
        [sys.executable, "conf/ivy/resolve_jars.py", "connect", str(CONNECT_JARS)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    started = time.perf_counter()
    # Alone, since two tasks that create the tables of a new catalog get in each other's way.
    small, large = _sink(home, SMALL, name, 1), _sink(home, LARGE, name, TASKS)
    with ConnectSink(home / name, broker.bootstrap_servers, small) as worker:
        _wait_for(home, SMALL, SMALL_RECORDS, worker)
        start_s = time.perf_counter() - started
        with Meter(worker.pid) as meter:
            worker.add(large)
            _wait_for(home, LARGE, records, worker)
    return {"start_s": start_s, **meter.usage._asdict(), "steps": {}}


def _sink(home: Path, topic: str, name: str, tasks: int) -> dict[str, str]:
    """A sink with a table and a consumer group of its own."""
    defaults = home / "conf" / "spark-defaults.conf"
    settings = sink_settings(defaults, topic, [f"connect.{topic}"], tasks=tasks)
    return {**settings, **AUTO_CREATED, "name": f"{name}-{topic}"}


def _wait_for(home: Path, table: str, records: int, worker: ConnectSink) -> None:
    while (rows := _rows(home, table)) < records:
        assert not worker.failures(), worker.failures()
        time.sleep(0.2)
    assert rows == records, f"expected {records} rows, found {rows}"


def _rows(home: Path, table: str) -> int:
    """How many rows the last commit says that a table has."""
    defaults, name = read_defaults(home / "conf" / "spark-defaults.conf"), ("connect", table)
    with open_catalog(catalog_settings(defaults), CATALOG) as catalog:
        if catalog is None or not catalog.table_exists(name):
            return 0
        snapshot = catalog.load_table(name).current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    return 0 if summary is None else int(summary["total-records"] or 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--home", type=Path, default=BENCH, help="for the broker and lakes")
    args = parser.parse_args()
    run(args.records, args.runs, args.home / "ingest-topic", args.results)


if __name__ == "__main__":
    main()
