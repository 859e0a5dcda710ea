"""Random topics through the Spark stages and through Kafka's own classes.

`python -m tests.nights.fuzz --topics 20 --seed 7`; goes on with `--first N` where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

import tests.conftest  # noqa: F401 (what Spark's workers need)
from ebbtide.jobs.clean_log import cleaner
from ebbtide.settings.names import CATALOG
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING
from tests.kafka.oracle import JARS
from tests.kafka.random_logs import random_topic
from tests.kafka.scenarios import Partition, Topic, to_json
from tests.lake_sandbox import LakeSandbox
from tests.log.fuzz import as_text
from tests.log.shrink import fewer_requests, first_rounds, less_grown
from tests.nights.spark_replay import Tally, replay_topic

REGRESSIONS = Path(__file__).parent / "regressions"
PARTITIONS = 20  # logs of a topic
LOGS_AT_ONCE = 20  # while a difference is made smaller
SEEDS_APART = 10**6
SHRINKING_SECONDS = 300
# A topic at a time leaves a core idle while the driver thinks.
TOPICS_AT_ONCE = 3


def topic_of(seed: int, number: int, partitions: int = PARTITIONS) -> Topic:
    """Topic `number` of a seed; segments are no smaller than Kafka lets a topic set."""
    return random_topic(seed * SEEDS_APART + number, partitions, merges_by_size=False)


def run(
    spark: SparkSession, home: Path, topics: Mapping[int, Topic], seed: int, *, has_holds: bool
) -> Iterator[tuple[int, Tally]]:
    """The tally of each topic, in order."""

    def replayed(number: int) -> Tally:
        folder, held_by = home / f"s{seed}n{number}", number if has_holds else None
        return replay_topic(_session(spark), topics[number], folder, JARS, held_by=held_by)

    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        yield from zip(topics, pool.map(replayed, topics), strict=True)


def _session(spark: SparkSession) -> SparkSession:
    """A session of the thread's own, on the same lake."""
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith(("spark.sql.catalog.", DRIVER_ROWS_SETTING)):
            session.conf.set(name, value)
    return session


def write_smallest(
    spark: SparkSession, home: Path, topic: Topic, partition: int, name: str
) -> Path:
    """Shrink the log that differs, and write it where regression tests are found."""
    smallest = replace(topic, partitions=(topic.partitions[partition],))
    ((_, shown),) = _differing(spark, home, smallest)
    smallest = first_rounds(smallest, int(shown[0].removeprefix("round ").split(":")[0]) + 1)
    until = time.monotonic() + SHRINKING_SECONDS
    while time.monotonic() < until:
        (log,) = smallest.partitions
        differing = _differing(
            spark, home, replace(smallest, partitions=(*less_grown(log), *fewer_requests(log)))
        )
        if not differing:
            break
        shortest, shown = min(differing, key=lambda log_and_lines: len(str(log_and_lines[0])))
        smallest = replace(smallest, partitions=(shortest,))
    REGRESSIONS.mkdir(exist_ok=True)
    path = REGRESSIONS / f"{name}.json"
    path.write_text(as_text({"shows": shown[:3], **to_json(smallest)}) + "\n")
    return path


def _differing(spark: SparkSession, home: Path, topic: Topic) -> list[tuple[Partition, list[str]]]:
    """The first logs of a topic that differ, a few of them at a time, and in what."""
    for start in range(0, len(topic.partitions), LOGS_AT_ONCE):
        few = topic.partitions[start : start + LOGS_AT_ONCE]
        folder = home / f"c{uuid.uuid4().hex}"
        tally = replay_topic(_session(spark), replace(topic, partitions=few), folder, JARS)
        if tally.differences:
            return [(few[number], lines) for number, lines in tally.differences.items()]
    return []


def main(argv: Sequence[str] | None = None) -> int:
    """Run and tell how far it is; 1 where a log differs, or too little was compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--logs-a-topic", type=int, default=PARTITIONS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="the number of the first topic")
    parser.add_argument(
        "--in-tasks", action="store_true", help="as a round on many rows, however few there are"
    )
    parser.add_argument(
        "--map-bytes",
        type=int,
        default=cleaner.MAP_BYTES,
        help="the size above which an offset map is made in shares",
    )
    parser.add_argument(
        "--holds", action="store_true", help="with random holds, which must change no log"
    )
    arguments = parser.parse_args(argv)
    if arguments.first >= arguments.topics:
        parser.error(f"expected --first below --topics {arguments.topics}, found {arguments.first}")
    cleaner.MAP_BYTES = arguments.map_bytes
    total, started = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        home = Path(folder)
        spark = LakeSandbox(home / "home").session
        if arguments.in_tasks:
            spark.conf.set(DRIVER_ROWS_SETTING, 0)
        # Iceberg's JDBC catalog makes its tables at first use, and two at once get in each
        # other's way.
        spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
        topics = {
            number: topic_of(arguments.seed, number, arguments.logs_a_topic)
            for number in range(arguments.first, arguments.topics)
        }
        for number, tally in run(spark, home, topics, arguments.seed, has_holds=arguments.holds):
            total.add(tally)
            print(
                f"fuzz: {number + 1} of {arguments.topics} topics, {total}, "
                f"{time.monotonic() - started:.0f} s; "
                f"--seed {arguments.seed} --first {number + 1} goes on",
                file=sys.stderr,
            )
            for line in tally.lost[:5]:
                print(f"topic {number}, held: {line}")
            for partition, lines in tally.plain_differences.items():
                print(f"topic {number} partition {partition}, plain rules:", *lines[:5], sep="\n  ")
            for partition, lines in tally.differences.items():
                print(f"topic {number} partition {partition}:", *lines[:5], sep="\n  ")
                name = f"seed-{arguments.seed}-topic-{number}-{partition}"
                print(f"smallest: {write_smallest(spark, home, topics[number], partition, name)}")
    print(*total.gaps(), total, sep="\n")
    return 0 if total.is_proof else 1


if __name__ == "__main__":
    sys.exit(main())
