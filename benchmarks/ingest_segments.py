"""Records per second of ingest_segments through Spark, on a log directory made for it.

    python -m benchmarks.ingest_segments [--records 1000000] [--batch 300] [--files 6]

`walk` reads and checks every batch (CRC too), `decode` makes rows of the records and throws them
away. `ingest` is the whole stage into a new topic, from commit point to commit point: from
ingest_records on, records are decoded again and written. A small ingest before warms the JVM up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from ebbtide.iceberg import commits
from ebbtide.iceberg.topics import Topic
from ebbtide.log.settings.names import TopicName
from ebbtide.records.files.segment_reader import BatchLimits
from ebbtide.records.v2_writer import BatchFields, Record, write_batch
from ebbtide.stages.ingest_segments.segment_source import records_frame
from ebbtide.stages.ingest_segments.stage import (
    Source,
    ingest_segments,
    plan_ingest,
    records_to_read,
)
from ebbtide.stores.store import AMBIENT
from tests.lake_sandbox import ROOT, LakeSandbox

T = TypeVar("T")
Seconds = dict[str, float]
T0 = 1_795_000_000_000
NOW = datetime(2026, 12, 1, tzinfo=UTC)
VALUE_BYTES = 100


def value(choose: random.Random) -> bytes:
    fields = {
        "flight": choose.randrange(10_000),
        "tail": f"N{choose.randrange(99_999)}",
        "note": "",
    }
    room = VALUE_BYTES - len(json.dumps(fields))
    fields["note"] = "".join(choose.choices("abcdefgh", k=room))
    return json.dumps(fields).encode()


def write_log(directory: Path, records: int, batch: int, files: int) -> Path:
    """Partitions with one segment file each."""
    choose = random.Random(20131231)
    values = [value(choose) for _ in range(5_000)]
    for partition in range(files):
        path = directory / f"t-{partition}" / f"{0:020}.log"
        path.parent.mkdir(parents=True)
        count = records // files
        with path.open("wb") as log:
            for first in range(0, count, batch):
                rows = [
                    Record(i, T0 + i, b"UA%d" % (i % 6_000), values[i % len(values)])
                    for i in range(first, min(first + batch, count))
                ]
                log.write(write_batch(BatchFields(), rows))
    return directory


def timed(run: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def ingest(sandbox: LakeSandbox, cluster: str, directory: Path) -> Seconds:
    """A new topic, and how long it was from each commit point to the next."""
    reached = [("begin", time.perf_counter())]
    commits.before_commit = lambda step: reached.append((step, time.perf_counter()))
    source = Source.of_uri(str(directory), NOW)
    ingest_segments(sandbox.session, TopicName(cluster, "t"), source)
    reached.append(("end", time.perf_counter()))
    spans = {
        f"{step} to {following}": until - since
        for (step, since), (following, until) in pairwise(reached)
    }
    return {**spans, "ingest": reached[-1][1] - reached[0][1]}


def read(sandbox: LakeSandbox, directory: Path) -> Seconds:
    """Reading alone, without a table."""
    import pyarrow as pa

    source = Source.of_uri(str(directory), NOW)
    topic = Topic(sandbox.session, TopicName("none", "t"), {})
    walk, plan = timed(lambda: plan_ingest(topic, source, {}))
    ranges = [r for p, log in plan.logs.items() for r in records_to_read(p, log)]
    append_time = pa.scalar(NOW, pa.timestamp("us", tz="UTC"))
    frame = records_frame(sandbox.session, ranges, append_time, BatchLimits(), AMBIENT)
    decode, _ = timed(lambda: frame.write.format("noop").mode("overwrite").save())
    return {"walk": walk, "decode": decode, "walk + decode": walk + decode}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=300)
    parser.add_argument("--files", type=int, default=6)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "conf" / "python")
    with tempfile.TemporaryDirectory() as temporary:
        sandbox = LakeSandbox(Path(temporary) / "home")
        small = write_log(Path(temporary) / "small", 20_000, args.batch, 4)
        large = write_log(Path(temporary) / "large", args.records, args.batch, args.files)
        ingest(sandbox, "warm", small)
        read(sandbox, small)
        load = os.getloadavg()[0]
        seconds = read(sandbox, large) | ingest(sandbox, "measured", large)
        master = sandbox.session.sparkContext.master
    print(f"{args.records} records, {args.files} files, {master}, load before {load:.1f}")
    for step, took in seconds.items():
        print(f"{step:34} {took:7.2f} s   {args.records / took:>12,.0f} records/s")


if __name__ == "__main__":
    main()
