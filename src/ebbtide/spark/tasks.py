"""Work that is not a DataFrame: a segment each, values in and out.

The driver's threads do it where Spark is local or the work is little, else Spark tasks. NumPy and
Arrow let threads run side by side, and nothing has to be handed to Python workers and back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, partial
from threading import Thread
from typing import Generic, NamedTuple, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from ebbtide import errors
from ebbtide.spark.job_log import told, watched

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

# Enough to even out segments of unequal size, few enough that starting tasks costs little.
TASKS_PER_CORE = 8
# Python workers take seconds to start; with fewer rows than these the driver is done before.
LITTLE_ROWS = 1_000_000
DRIVER_ROWS_SETTING = "spark.ebbtide.driver.rows"
_RAISED = re.compile(r"^ebbtide\.errors\.(\w+): (.*)$", re.MULTILINE)


def map_segments(
    spark: SparkSession, work: Callable[[T], R], units: Sequence[T], rows: int, doing: str
) -> list[R]:
    """What `work` makes of each unit, in order; `rows` is how many they hold in all.

    `doing` names the work to those who wait for it.
    """
    how = in_threads if is_on_driver(spark, rows) else in_tasks
    return how(spark, work, units, doing)


def is_on_driver(spark: SparkSession, rows: int) -> bool:
    """Whether the driver does work on so many rows: little, or any where it is all of Spark."""
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
    """The value for work on so many rows; executors get it once each."""
    if is_on_driver(spark, rows):
        yield _OnDriver(value)
        return
    sent = spark.sparkContext.broadcast(value)
    try:
        yield sent
    finally:
        sent.destroy()


def in_threads(
    spark: SparkSession, work: Callable[[T], R], units: Sequence[T], doing: str
) -> list[R]:
    """What `work` makes of each unit, in order, a thread a core; the first error ends it."""
    pool = _pool(spark.sparkContext.defaultParallelism)
    futures = [pool.submit(copy_context().run, work, unit) for unit in units]

    def progress() -> tuple[int, int]:
        return sum(future.done() for future in futures), len(futures)

    try:
        with told(log, f"{doing} {len(units)} segments", "segments", progress):
            return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One for all topics of a process, so that they share the cores."""
    return ThreadPoolExecutor(threads, "segments")


def in_tasks(
    spark: SparkSession, work: Callable[[T], R], units: Sequence[T], doing: str
) -> list[R]:
    """What `work` makes of each unit, in order; a Spark task does one or more."""
    if not units:
        return []
    context = spark.sparkContext
    slices = min(len(units), TASKS_PER_CORE * context.defaultParallelism)
    with errors_of_tasks(), watched(spark, log, f"{doing} {len(units)} segments"):
        return context.parallelize(units, slices).map(work).collect()


def start_workers(spark: SparkSession, work: Callable[..., object]) -> None:
    """Let Python workers start and import what `work` needs while the driver goes on planning."""
    context = spark.sparkContext
    count = context.defaultParallelism
    started = context.parallelize(range(count), count).map(partial(_do_nothing, work))
    Thread(target=started.count, daemon=True).start()


def _do_nothing(work: Callable[..., object], number: int) -> None:
    """In a task: it was enough to be handed `work`."""


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise again here what one of ours was in a Spark task; Spark hands on its text only."""
    try:
        yield
    except (PythonException, Py4JJavaError) as failure:  # of DataFrames, of RDDs
        raised = _RAISED.findall(str(failure))
        if not raised:
            raise
        name, message = raised[-1]
        raise getattr(errors, name)(message) from failure
