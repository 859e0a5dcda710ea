"""Split what each of many units holds into shares, and work on each share as a whole.

What passes from one to the other lies on disk: in a file for each share where the driver does the
work, and else in Spark's shuffle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError
from ebbtide.spark.job_log import watched
from ebbtide.spark.tasks import (
    TASKS_PER_CORE,
    Outcome,
    in_threads,
    is_on_driver,
    log,
    values,
)

T = TypeVar("T")
R = TypeVar("R")
# Yields pieces of a unit, with the number of the share of each.
Split = Callable[[T], Iterable[tuple[int, Any]]]
# Is given all pieces of a share, in no order.
OfShare = Callable[[list[Any]], R]


def map_shares(
    spark: SparkSession,
    split: Split[T],
    work: OfShare[R],
    units: Sequence[T],
    shares: int,
    rows: int,
) -> list[R]:
    """Split each unit, then run `work` on each share that has pieces; results in no order.

    `rows` is how many rows the units hold in all.
    """
    how = _through_files if is_on_driver(spark, rows) else _through_shuffle
    return how(spark, split, work, units, shares)


class _ShareFile(NamedTuple):
    """The file of a share, to which one thread at a time adds a piece."""

    path: Path
    lock: Lock

    def add(self, piece: Any) -> None:
        """Append a piece."""
        with self.lock, self.path.open("ab") as file:
            pickle.dump(piece, file, pickle.HIGHEST_PROTOCOL)

    def pieces(self) -> Iterator[Any]:
        """Yield all pieces."""
        size_bytes = self.path.stat().st_size
        with self.path.open("rb") as file:
            while file.tell() < size_bytes:
                yield pickle.load(file)


def _through_files(
    spark: SparkSession, split: Split[T], work: OfShare[R], units: Sequence[T], shares: int
) -> list[R]:
    of_spark = spark.sparkContext._temp_dir  # gone with the application
    with TemporaryDirectory(prefix="shares-", dir=of_spark) as directory:
        files = [_ShareFile(Path(directory, str(n)), Lock()) for n in range(shares)]
        in_threads(spark, partial(_add, split, files), units, "splits keys of")
        written = [file for file in files if file.path.exists()]
        return in_threads(spark, partial(_of_file, work), written, "maps keys of", things="shares")


def _add(split: Split[T], files: Sequence[_ShareFile], unit: T) -> None:
    """Add a unit's pieces to the files of their shares."""
    for share, piece in split(unit):
        files[share].add(piece)


def _of_file(work: OfShare[R], file: _ShareFile) -> R:
    return work(list(file.pieces()))


def _through_shuffle(
    spark: SparkSession, split: Split[T], work: OfShare[R], units: Sequence[T], shares: int
) -> list[R]:
    context = spark.sparkContext
    slices = min(len(units), TASKS_PER_CORE * context.defaultParallelism)
    with watched(spark, log, f"maps keys of {len(units)} segments in {shares} shares"):
        pieces = context.parallelize(units, slices).mapPartitions(partial(_pieces, split))
        of_shares = pieces.partitionBy(shares, int).mapPartitions(partial(_of_share, work))
        return values(of_shares.collect())


def _pieces(split: Split[T], units: Iterable[T]) -> Iterator[tuple[int, Outcome]]:
    """Yield the pieces of a task's units, until an error of ours, which is the last one."""
    try:
        for unit in units:
            for share, piece in split(unit):
                yield share, Outcome(piece)
    except EbbtideError as error:
        yield 0, Outcome(error=error)


def _of_share(work: OfShare[R], pieces: Iterable[tuple[int, Outcome]]) -> Iterator[Outcome]:
    """Run the work on a share's pieces, if it has any and no error of ours is among them."""
    try:
        if mine := values(piece for _, piece in pieces):
            yield Outcome(work(mine))
    except EbbtideError as error:
        yield Outcome(error=error)
