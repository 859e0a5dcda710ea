"""Work that is not a DataFrame: a segment each, values in and out, in Spark tasks if it is much."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from ebbtide import errors
from ebbtide.spark.job_log import watched

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Enough to even out segments of unequal size, few enough that starting tasks costs little.
TASKS_PER_CORE = 8
# Python workers take seconds to start; fewer rows than these are done with before.
LOCAL_ROWS = 1_000_000
LOCAL_ROWS_SETTING = "spark.ebbtide.driver.rows"
_RAISED = re.compile(r"^ebbtide\.errors\.(\w+): (.*)$", re.MULTILINE)


def map_segments(
    spark: SparkSession, work: Callable[[T], R], units: Sequence[T], rows: int, doing: str
) -> list[R]:
    """What `work` makes of each unit, in order; `rows` is how many they hold in all.

    `doing` names the work to those who wait for it.
    """
    if is_little(spark, rows):
        return [work(unit) for unit in units]
    return in_tasks(spark, work, units, doing)


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


def is_little(spark: SparkSession, rows: int) -> bool:
    """Whether so many rows are read on the driver sooner than in tasks."""
    return rows < int(spark.conf.get(LOCAL_ROWS_SETTING, None) or LOCAL_ROWS)


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
