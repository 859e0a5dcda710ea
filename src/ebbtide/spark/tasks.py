"""Run work that is not a DataFrame: one segment each, values in and out.

The driver's threads run it where Spark is local or the work is little, and Spark tasks otherwise.
NumPy and Arrow let threads run side by side, and nothing has to be handed to Python workers and
back.
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
# Makes few results of many neighbouring ones.
Fold = Callable[[list[R]], list[R]]

# Enough to even out segments of unequal size, few enough that starting tasks costs little.
TASKS_PER_CORE = 8
# Python workers take seconds to start; with fewer rows than these the driver is done before.
LITTLE_ROWS = 1_000_000
# So many results are folded at a time.
FOLDED = 256
# So many units are handed to threads before the first one's result is taken; each takes 2.5 kB.
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
    """Run `work` on each unit; return the results in order, as `fold` puts them together.

    `rows` is how many rows the units hold in all. `doing` names the work in the log.
    """
    how = in_threads if is_on_driver(spark, rows) else in_tasks
    return how(spark, work, units, doing, fold)


def is_on_driver(spark: SparkSession, rows: int) -> bool:
    """Return whether the driver does work on so many rows: few, or any where Spark is local."""
    limit = spark.conf.get(DRIVER_ROWS_SETTING, None)
    if limit is None and (spark.sparkContext.master or "").startswith("local"):
        return True
    return rows < (LITTLE_ROWS if limit is None else int(limit))


class Shared(Protocol[T_co]):
    """A value that all work of one kind looks at, wherever it is done."""

    @property
    def value(self) -> T_co:
        """The value."""


class _OnDriver(NamedTuple, Generic[T]):
    value: T


@contextmanager
def shared(spark: SparkSession, value: T, rows: int) -> Iterator[Shared[T]]:
    """Yield the value for work on so many rows; executors get it once each."""
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
    """Run `work` on each unit, a thread a core, until an error; return the results in order."""
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
    """Return the results, or what becomes of them."""
    if fold is None:
        return list(results)
    left, folded = iter(results), list[R]()
    while some := list(islice(left, FOLDED)):
        folded += fold(some)
    return folded


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return one for all topics of a process, so that they share the cores."""
    return ThreadPoolExecutor(threads, "segments")


def in_tasks(
    spark: SparkSession,
    work: Callable[[T], R],
    units: Sequence[T],
    doing: str,
    fold: Fold[R] | None = None,
) -> list[R]:
    """Run `work` on each unit in Spark tasks; return the results in order.

    An error of ours comes back as a value, so that Spark does not try its task again.
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
    """A task's result for a unit or some, or else the error of ours that it met."""

    value: Any = None
    error: EbbtideError | None = None


def _outcomes(
    work: Callable[[T], R], fold: Fold[R] | None, units: Iterable[T]
) -> Iterator[Outcome]:
    """Run the work on each of a task's units, until an error of ours."""
    try:
        done = _folded(map(work, units), fold)
    except EbbtideError as error:
        return iter([Outcome(error=error)])
    return map(Outcome, done)


def values(outcomes: Iterable[Outcome]) -> list[Any]:
    """Return the results; raise an error among them."""
    results = []
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        results.append(outcome.value)
    return results


def start_workers(spark: SparkSession, work: Callable[..., object]) -> None:
    """Start Python workers, with the imports of `work`, while the driver goes on planning."""
    context = spark.sparkContext
    count = context.defaultParallelism
    started = context.parallelize(range(count), count).map(partial(_do_nothing, work))
    Thread(target=started.count, daemon=True).start()


def _do_nothing(work: Callable[..., object], number: int) -> None:
    """Do nothing, in a task: being handed `work` was enough."""


class TaskFailure(Exception):  # noqa: N818  its name is part of the text that Spark hands on
    """An error of ours in a task of a DataFrame, with the error's parts as JSON."""


@contextmanager
def told_as_text() -> Iterator[None]:
    """Raise errors as text in a task of mapInArrow: Spark passes only text on to the driver."""
    try:
        yield
    except EbbtideError as error:
        parts: dict[str, str | None] = {"class": type(error).__name__, "message": str(error)}
        if isinstance(error, SourceError):
            parts["path"] = error.path
        raise TaskFailure(json.dumps(parts)) from error


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise again the original error that a task of mapInArrow passed on as text."""
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


# Split what each of many units holds into shares, and work on each share as a whole.
#
# What passes from one to the other lies on disk: in a file for each share where the driver does
# the work, and else in Spark's shuffle.


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
