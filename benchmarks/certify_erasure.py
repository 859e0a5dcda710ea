"""MB/s of a search for erased keys, next to a plain read of the same files.

    python benchmarks/certify_erasure.py [--records 2000000] [--repeats 3]

The files are those of a records table: keys of 16 bytes, values of 200, zstd. The plain read
decompresses all columns by pyarrow, in one thread like the search. MB are those on the disk; the
best of the repeats counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide_verify.scan import Sought, search

KEYS = (1, 100, 10_000, 1_000_000)
A_FILE = 500_000  # records


def write_files(directory: Path, records: int) -> list[Path]:
    """Write records as an ingest does: sorted by offset, zstd, no dictionary for values."""
    choose, paths = np.random.default_rng(1), []
    for first in range(0, records, A_FILE):
        count = min(A_FILE, records - first)
        keys = [b"%016d" % number for number in choose.integers(0, records // 2, count)]
        # Half of a value is text that compresses, as in JSON.
        values = [
            choose.bytes(100) + b'{"name": "somebody", "street": "a long one"} ' * 2 for _ in keys
        ]
        table = pa.table(
            {
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(first, first + count), pa.int64()),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
            }
        )
        paths.append(directory / f"{first}.parquet")
        pq.write_table(table, paths[-1], compression="zstd")
    return paths


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def plain_read(paths: list[Path]) -> None:
    for path in paths:
        pq.read_table(pa.BufferReader(path.read_bytes()), use_threads=False)


def search_all(paths: list[Path], sought: Sought) -> None:
    for path in paths:
        data = path.read_bytes()
        hashlib.sha256(data).hexdigest()  # a certificate has it
        if search(data, sought):
            raise ValueError(f"expected no key of the search in {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = write_files(Path(directory), args.records)
        megabytes = sum(path.stat().st_size for path in paths) / 1e6
        plain_read(paths)
        measured: dict[str, float] = {}
        searches = {str(count): Sought([b"k%015d" % n for n in range(count)]) for count in KEYS}
        for _ in range(args.repeats):
            runs: dict[str, Callable[[], object]] = {"plain": lambda: plain_read(paths)}
            for name, sought in searches.items():
                runs[name] = lambda sought=sought: search_all(paths, sought)  # type: ignore[misc]
            for name, run in runs.items():
                measured[name] = min(measured.get(name, np.inf), seconds_of(run))
    plain = measured.pop("plain")
    print(f"{megabytes:,.0f} MB of files; a plain read: {megabytes / plain:,.0f} MB/s")
    for name, seconds in measured.items():
        print(f"{int(name):>9,} keys: {megabytes / seconds:,.0f} MB/s, {plain / seconds:.2f} of it")
    if args.results:
        args.results.write_text(json.dumps({"mb": megabytes, "plain": plain, **measured}))


if __name__ == "__main__":
    main()
