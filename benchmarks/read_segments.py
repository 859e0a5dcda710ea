"""Records per second of reading Kafka's segment files, beside kafka-python on the same files.

    python benchmarks/read_segments.py [--records 100000] [--batch 300] [--repeats 3]

Both build the same Arrow columns, on one core. `walk` reads and checks every batch (CRC too),
`decode` makes records of them, `both` is what an ingest does. The best of the repeats counts.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka.record import MemoryRecords

from ebbtide.records.batch import BATCH_SCHEMA, RECORD_SCHEMA
from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.records.segment_reader import read_records, walk_segment

MAX_BATCH_BYTES = 1_048_588
AIRPORTS = ("IAH", "MIA", "BQN", "ATL", "ORD", "FLL", "IAD", "MCO", "PBI", "TPA")

Seconds = dict[str, float]


def flight(offset: int, choose: random.Random) -> Record:
    """An event of about 110 bytes, keyed like a flight."""
    number = choose.randrange(1, 6000)
    value = {
        "event": choose.choice(("scheduled", "departed", "arrived")),
        "flight": number,
        "origin": choose.choice(("EWR", "JFK", "LGA")),
        "dest": choose.choice(AIRPORTS),
        "delay_min": choose.randrange(-20, 300),
        "tail": f"N{choose.randrange(10_000, 99_999)}",
    }
    timestamp_ms = 1_700_000_000_000 + offset * 7 + choose.randrange(-60_000, 60_000)
    return Record(offset, timestamp_ms, f"UA{number}".encode(), json.dumps(value).encode())


def write_segment(directory: Path, codec: Codec, records: int, batch: int) -> str:
    choose = random.Random(20131231)
    path = directory / codec.name / f"{0:020d}.log"
    path.parent.mkdir()
    with path.open("wb") as log:
        for first in range(0, records, batch):
            rows = [flight(at, choose) for at in range(first, min(first + batch, records))]
            log.write(write_batch(BatchFields(), rows, codec))
    return str(path)


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def time_ours(path: str) -> Seconds:
    size_bytes = Path(path).stat().st_size
    walk = seconds_of(lambda: walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES))
    decode = seconds_of(lambda: [chunk.num_rows for chunk in read_records(path, 0, size_bytes)])
    return {"walk": walk, "decode": decode, "both": walk + decode}


def their_batch_columns(path: str) -> object:
    rows = []
    position = 0
    for batch in batches_of(path):
        if not batch.validate_crc():
            raise ValueError(path)
        rows.append(
            (
                position,
                batch.base_offset,
                batch.last_offset,
                batch.leader_epoch,
                batch.magic,
                batch.attributes,
                batch.first_timestamp,
                batch.max_timestamp,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.records_count,
                batch.size_in_bytes,
                batch.crc,
                *(None, None, None),
            )
        )
        position += batch.size_in_bytes
    return to_arrow(rows, BATCH_SCHEMA)


def their_record_columns(path: str) -> object:
    rows = [
        (
            record.offset,
            batch.base_offset,
            record.timestamp * 1000,
            record.timestamp * 1000,
            record.key,
            record.value,
            record.headers,
            0,
            record.size_in_bytes,
        )
        for batch in batches_of(path)
        for record in batch
    ]
    return to_arrow(rows, RECORD_SCHEMA)


def to_arrow(rows: list[tuple[Any, ...]], schema: Any) -> object:
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def batches_of(path: str) -> Any:
    log = MemoryRecords(Path(path).read_bytes())
    while log.has_next():
        yield log.next_batch()


def time_theirs(path: str) -> Seconds:
    walk = seconds_of(lambda: their_batch_columns(path))
    decode = seconds_of(lambda: their_record_columns(path))
    return {"walk": walk, "decode": decode, "both": walk + decode}


def best(runs: list[Seconds]) -> Seconds:
    return {step: min(run[step] for run in runs) for step in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{args.records} records in batches of {args.batch}: records/s, and times kafka-python's")
    with tempfile.TemporaryDirectory() as directory:
        for codec in Codec:
            path = write_segment(Path(directory), codec, args.records, args.batch)
            time_ours(path), time_theirs(path)
            pairs = [(time_ours(path), time_theirs(path)) for _ in range(args.repeats)]
            ours, theirs = (best(list(runs)) for runs in zip(*pairs, strict=True))
            cells = [
                f"{step} {args.records / ours[step]:>12,.0f} ({theirs[step] / ours[step]:4.1f}x)"
                for step in ours
            ]
            print(f"{codec.name.lower():7}", *cells, sep="   ")


if __name__ == "__main__":
    main()
