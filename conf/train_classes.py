"""What a night does, to a topic of some records: the classes it loads are those worth archiving.

Usage: spark-submit conf/train_classes.py DIRECTORY, by conf/class_archive.py in a lake of its own.
"""

import importlib
import json
import sys
from pathlib import Path

from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

JOBS = Path(__file__).resolve().parent.parent / "jobs"
TOPIC = "trained.t"
NOON_MS = 1_767_268_800_000  # 2026-01-01
NOW = "2026-01-20T12:00:00+00:00"
DAY_MS = 24 * 3_600_000
SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0.01",
    "kafka.delete.retention.ms": "0",
    "kafka.retention.ms": str(16 * DAY_MS),
    "ebbtide.max.delete.ratio": "1",
    "ebbtide.rewrite.deleted.ratio": "0",
    "history.expire.max-snapshot-age-ms": "0",
}
REQUEST = {"topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "offset": 14}]}]}


def main(directory: Path) -> int:
    """Each job of a night; the first exit code that is not 0, and no job after it."""
    sys.path.insert(0, str(JOBS))
    write_log(directory / "t-0")
    settings = [word for pair in SETTINGS.items() for word in ("--set", "=".join(pair))]
    of_topic = ("--topic", TOPIC)
    for job, *arguments in (
        ("ingest_segments", "--source", str(directory), "--cluster", "trained", *settings),
        ("mark_tombstones", *of_topic),
        ("clean_log", *of_topic),
        ("expire_segments", *of_topic),
        ("delete_records", "--request", json.dumps(REQUEST)),
        ("expire_snapshots", *of_topic),
        ("clean_log", *of_topic, "--plan-only"),
    ):
        code: int = importlib.import_module(job).main([*arguments, "--now", NOW, "--run-id", "1"])
        if code:
            return code
    read()
    return 0


def read() -> None:
    """Read the topic's table by a query, as people do, and jobs where rows need Spark."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    spark.sql("SELECT 1").collect()
    spark.table(f"lake.{TOPIC}").limit(1).collect()


def write_log(partition: Path) -> None:
    """Segments a day apart, in which later records supersede earlier ones."""
    partition.mkdir(parents=True)
    for day in range(6):
        base = 4 * day
        records = [record(base + i, day) for i in range(4)]
        (partition / f"{base:020}.log").write_bytes(write_batch(BatchFields(), records))


def record(offset: int, day: int) -> Record:
    """One of eight keys with a header; every fifth record is a tombstone."""
    value = None if offset % 5 == 4 else b"value %d" % offset
    return Record(offset, NOON_MS + day * DAY_MS, b"k%d" % (offset % 8), value, [(b"h", b"1")])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
