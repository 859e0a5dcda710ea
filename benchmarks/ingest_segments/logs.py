"""The segment files that are ingested: a codec, and how many records a batch holds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple, Self

from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

TOPIC = "t"
PARTITIONS = 6
VALUE_BYTES = 100
FIRST_MS = 1_795_000_000_000
SEED = 20131231


class Cell(NamedTuple):
    """A log of PARTITIONS files."""

    codec: Codec
    batch_records: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read `<codec>-<records a batch>`, such as zstd-100."""
        codec, _, batch = name.partition("-")
        return cls(Codec[codec.upper()], int(batch))

    @property
    def name(self) -> str:
        """As it is parsed."""
        return f"{self.codec.name.lower()}-{self.batch_records}"


def write_log(directory: Path, cell: Cell, records: int) -> int:
    """Write as many records; the bytes of all files."""
    choose = random.Random(SEED)
    values = [_value(choose) for _ in range(5_000)]
    size = 0
    for partition in range(PARTITIONS):
        path = directory / f"{TOPIC}-{partition}" / f"{0:020}.log"
        path.parent.mkdir(parents=True)
        with path.open("wb") as log:
            for first in range(0, records // PARTITIONS, cell.batch_records):
                last = min(first + cell.batch_records, records // PARTITIONS)
                rows = [
                    Record(at, FIRST_MS + at, b"UA%d" % (at % 6_000), values[at % len(values)])
                    for at in range(first, last)
                ]
                log.write(write_batch(BatchFields(), rows, cell.codec))
        size += path.stat().st_size
    return size


def _value(choose: random.Random) -> bytes:
    fields = {
        "flight": choose.randrange(10_000),
        "tail": f"N{choose.randrange(99_999)}",
        "note": "",
    }
    room = VALUE_BYTES - len(json.dumps(fields))
    fields["note"] = "".join(choose.choices("abcdefgh", k=room))
    return json.dumps(fields).encode()
