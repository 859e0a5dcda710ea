"""Spark Structured Streaming from a topic to tables, every 2 seconds, until a file appears.

    spark-submit tests/writers/stream.py --bootstrap HOST:PORT --topic T --directory DIR \
        spark_source=lake.ns.one redpanda=lake.ns.other

DIR gets the checkpoints, `started` once each table has rows of a batch, and is looked at for
`stop`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

COLUMNS = {
    "spark_source": ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
    "redpanda": [
        "struct(`partition`, timestamp, offset, headers, key, timestampType AS timestamp_type) "
        "AS redpanda",
        "value",
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("tables", nargs="+", metavar="SHAPE=TABLE")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("stream").getOrCreate()
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    queries = []
    for number, (shape, _, table) in enumerate(argument.partition("=") for argument in args.tables):
        writer = source.selectExpr(*COLUMNS[shape]).writeStream.outputMode("append")
        writer = writer.trigger(processingTime="2 seconds")
        checkpoint = str(args.directory / f"checkpoint-{number}")
        queries.append(writer.option("checkpointLocation", checkpoint).toTable(table))
    stop, started = args.directory / "stop", args.directory / "started"
    while not stop.exists():
        if any(not query.isActive for query in queries):
            break
        if not started.exists() and all(query.lastProgress for query in queries):
            started.touch()
        time.sleep(0.2)
    for query in queries:
        query.processAllAvailable()  # raises what it has failed with
        query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
