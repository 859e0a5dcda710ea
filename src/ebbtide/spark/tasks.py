"""Run work that is not a DataFrame: one segment per unit, with values in and out.

The driver's threads run it if Spark is local or the work is small, else Spark tasks do. NumPy and
Arrow let threads run in parallel, and nothing has to be passed to Python workers and back.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, SourceError, class_named
from ebbtide.spark.job_log import progress_logged, watched

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)
# Joins neighbouring results into fewer ones.
Fold = Callable[[list[R]], list[R]]

# Enough to balance segments of unequal size, few enough that starting tasks costs little.
TASKS_PER_CORE = 8
# Python workers take seconds to start; with fewer rows than this the driver is done before.
LITTLE_ROWS = 1_000_000
# Number of results that are folded at a time.
FOLDED = 256
# Number of units queued for threads ahead of the first unread result; each takes 2.5 kB.
AHEAD = 256
DRIVER_ROWS_SETTING = "spark.ebbtide.driver.rows"
_TOLD = re.compile(r"^ebbtide\.spark\.tasks\.TaskFailure: (\{.*\})$", re.MULTILINE)


def map_segments(
    spark: SparkSession,
    work: Callable[[T], R],
    units: Sequence[T],
    rows: int,
    doing: str,
    fold: Fold[R] | None = None,
) -> list[R]:
    """Run `work` on each unit; return the results in order, joined by `fold`.

    `rows` is the number of rows in all units. `doing` names the work in the log.
    """
    how = in_threads if is_on_driver(spark, rows) else in_tasks
    return how(spark, work, units, doing, fold)


def is_on_driver(spark: SparkSession, rows: int) -> bool:
    """Return whether the driver does work on this number of rows: always if Spark is local."""
    limit = spark.conf.get(DRIVER_ROWS_SETTING, None)
    if limit is None and (spark.sparkContext.master or "").startswith("local"):
        return True
    return rows < (LITTLE_ROWS if limit is None else int(limit))


class Shared(Protocol[T_co]):
    """A value that all units of some work read, on the driver or in tasks."""

    @property
    def value(self) -> T_co:
        """The shared value."""


class _OnDriver(NamedTuple, Generic[T]):
    value: T


@contextmanager
def shared(spark: SparkSession, value: T, rows: int) -> Iterator[Shared[T]]:
    """Yield the value for work on this number of rows; each executor gets it once."""
    if is_on_driver(spark, rows):
        yield _OnDriver(value)
        return
    sent = spark.sparkContext.broadcast(value)
    try:
        yield sent
    finally:
        sent.destroy()


def in_threads(
    spark: SparkSession,
    work: Callable[[T], R],
    units: Sequence[T],
    doing: str,
    fold: Fold[R] | None = None,
    things: str = "segments",
) -> list[R]:
    """Run `work` on each unit in one thread per core; return the results in order.

    An error stops the rest.
    """
    pool, left = _pool(spark.sparkContext.defaultParallelism), iter(units)
    ahead = deque[Future[R]]()
    taken = 0

    def submit(count: int) -> None:
        ahead.extend(pool.submit(copy_context().run, work, unit) for unit in islice(left, count))

    def results() -> Iterator[R]:
        nonlocal taken
        submit(AHEAD)
        while ahead:
            result = ahead.popleft().result()
            taken += 1
            submit(1)
            yield result

    def progress() -> tuple[int, int]:
        return taken + sum(future.done() for future in ahead.copy()), len(units)

    try:
        with progress_logged(log, f"{doing} {len(units)} {things}", things, progress):
            return _folded(results(), fold)
    finally:
        for future in ahead:
            future.cancel()
        wait(ahead)


def _folded(results: Iterable[R], fold: Fold[R] | None) -> list[R]:
    """Return the results, joined by `fold` if there is one."""
    if fold is None:
        return list(results)
    left, folded = iter(results), list[R]()
    while some := list(islice(left, FOLDED)):
        folded += fold(some)
    return folded


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool that all topics of a process use, so that they share the cores."""
    return ThreadPoolExecutor(threads, "segments")


def in_tasks(
    spark: SparkSession,
    work: Callable[[T], R],
    units: Sequence[T],
    doing: str,
    fold: Fold[R] | None = None,
) -> list[R]:
    """Run `work` on each unit in Spark tasks; return the results in order.

    A task returns ebbtide's errors as values, so that Spark does not retry it.
    """
    if not units:
        return []
    context = spark.sparkContext
    slices = min(len(units), TASKS_PER_CORE * context.defaultParallelism)
    with watched(spark, log, f"{doing} {len(units)} segments"):
        tasks = context.parallelize(units, slices).mapPartitions(partial(_outcomes, work, fold))
        done = tasks.collect()
    return values(done)


class Outcome(NamedTuple):
    """A task's result for one or more units, or an error of ebbtide."""

    value: Any = None
    error: EbbtideError | None = None


def _outcomes(
    work: Callable[[T], R], fold: Fold[R] | None, units: Iterable[T]
) -> Iterator[Outcome]:
    """Run the work on each of a task's units, until an error of ebbtide."""
    try:
        done = _folded(map(work, units), fold)
    except EbbtideError as error:
        return iter([Outcome(error=error)])
    return map(Outcome, done)


def values(outcomes: Iterable[Outcome]) -> list[Any]:
    """Return the results, or raise the first error among them."""
    results = []
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        results.append(outcome.value)
    return results


def start_workers(spark: SparkSession, work: Callable[..., object]) -> None:
    """Start Python workers, with the imports of `work`, while the driver continues to plan."""
    context = spark.sparkContext
    count = context.defaultParallelism
    started = context.parallelize(range(count), count).map(partial(_do_nothing, work))
    Thread(target=started.count, daemon=True).start()


def _do_nothing(work: Callable[..., object], number: int) -> None:
    """Do nothing, in a task: to unpickle `work` imports its modules."""


class TaskFailure(Exception):  # noqa: N818  its name is in the text that Spark passes on
    """An error of ebbtide in a task of a DataFrame, as JSON."""


@contextmanager
def told_as_text() -> Iterator[None]:
    """Convert errors to JSON in a task of mapInArrow: Spark passes only text to the driver."""
    try:
        yield
    except EbbtideError as error:
        parts: dict[str, str | None] = {"class": type(error).__name__, "message": str(error)}
        if isinstance(error, SourceError):
            parts["path"] = error.path
        raise TaskFailure(json.dumps(parts)) from error


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise the original error that a task of mapInArrow passed on as JSON."""
    try:
        yield
    except (PythonException, Py4JJavaError) as failure:
        if (error := _told_in(str(failure))) is None:
            raise
        raise error from failure


def _told_in(text: str) -> EbbtideError | None:
    told = _TOLD.findall(text)
    parts = json.loads(told[-1]) if told else {}
    kind = class_named(parts.pop("class", None))
    return None if kind is None else kind(*parts.values())


# Split each of many units into pieces by share, then work on each share as a whole.
#
# Pieces are passed on disk: in a file per share if the driver does the work, else in Spark's
# shuffle.


# Yields a unit's pieces as (number of the share, piece).
Split = Callable[[T], Iterable[tuple[int, Any]]]
# Gets all pieces of a share, in no order.
OfShare = Callable[[list[Any]], R]


def map_shares(
    spark: SparkSession,
    split: Split[T],
    work: OfShare[R],
    units: Sequence[T],
    shares: int,
    rows: int,
) -> list[R]:
    """Split each unit, then run `work` on each share that has pieces; results are in no order.

    `rows` is the number of rows in all units.
    """
    how = _through_files if is_on_driver(spark, rows) else _through_shuffle
    return how(spark, split, work, units, shares)


class _ShareFile(NamedTuple):
    """The file of a share; threads append pieces one at a time."""

    path: Path
    lock: Lock

    def add(self, piece: Any) -> None:
        """Append a piece to the file."""
        with self.lock, self.path.open("ab") as file:
            pickle.dump(piece, file, pickle.HIGHEST_PROTOCOL)

    def pieces(self) -> Iterator[Any]:
        """Yield all pieces of the file."""
        size_bytes = self.path.stat().st_size
        with self.path.open("rb") as file:
            while file.tell() < size_bytes:
                yield pickle.load(file)


def _through_files(
    spark: SparkSession, split: Split[T], work: OfShare[R], units: Sequence[T], shares: int
) -> list[R]:
    of_spark = spark.sparkContext._temp_dir  # Spark deletes it when the application ends
    with TemporaryDirectory(prefix="shares-", dir=of_spark) as directory:
        files = [_ShareFile(Path(directory, str(n)), Lock()) for n in range(shares)]
        in_threads(spark, partial(_add, split, files), units, "splitting keys of")
        written = [file for file in files if file.path.exists()]
        return in_threads(
            spark, partial(_of_file, work), written, "mapping keys of", things="shares"
        )


def _add(split: Split[T], files: Sequence[_ShareFile], unit: T) -> None:
    for share, piece in split(unit):
        files[share].add(piece)


def _of_file(work: OfShare[R], file: _ShareFile) -> R:
    return work(list(file.pieces()))


def _through_shuffle(
    spark: SparkSession, split: Split[T], work: OfShare[R], units: Sequence[T], shares: int
) -> list[R]:
    context = spark.sparkContext
    slices = min(len(units), TASKS_PER_CORE * context.defaultParallelism)
    with watched(spark, log, f"mapping keys of {len(units)} segments in {shares} shares"):
        pieces = context.parallelize(units, slices).mapPartitions(partial(_pieces, split))
        of_shares = pieces.partitionBy(shares, int).mapPartitions(partial(_of_share, work))
        return values(of_shares.collect())


def _pieces(split: Split[T], units: Iterable[T]) -> Iterator[tuple[int, Outcome]]:
    """Yield the pieces of a task's units, until an error of ebbtide, which is the last one."""
    try:
        for unit in units:
            for share, piece in split(unit):
                yield share, Outcome(piece)
    except EbbtideError as error:
        yield 0, Outcome(error=error)


def _of_share(work: OfShare[R], pieces: Iterable[tuple[int, Outcome]]) -> Iterator[Outcome]:
    """Run the work on a share's pieces, unless there are none or one is an error of ebbtide."""
    try:
        if mine := values(piece for _, piece in pieces):
            yield Outcome(work(mine))
    except EbbtideError as error:
        yield Outcome(error=error)
