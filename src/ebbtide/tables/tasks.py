"""Work in Spark tasks that is not a DataFrame: a segment each, values in and out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from ebbtide import errors

T = TypeVar("T")
R = TypeVar("R")

# Enough to even out segments of unequal size, few enough that starting tasks costs little.
TASKS_PER_CORE = 3
_RAISED = re.compile(r"^ebbtide\.errors\.(\w+): (.*)$", re.MULTILINE)


def map_segments(spark: SparkSession, work: Callable[[T], R], units: Sequence[T]) -> list[R]:
    """What `work` makes of each unit, in order; a Spark task does one or more."""
    if not units:
        return []
    context = spark.sparkContext
    slices = min(len(units), TASKS_PER_CORE * context.defaultParallelism)
    with errors_of_tasks():
        return context.parallelize(units, slices).map(work).collect()


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
