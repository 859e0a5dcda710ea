"""Kafka's log retention for logs in Apache Iceberg; from Python, start with `open_lake`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebbtide.lake.reader import Lake

__version__ = "0.2.0"


def open_lake(defaults: Path | None = None, catalog: str = "lake") -> AbstractContextManager[Lake]:
    """Open the tables of a Spark catalog until the block ends, to read them without Spark.

    `defaults` is a spark-defaults.conf; default: the one in $SPARK_CONF_DIR. docs/python.md lists
    the methods.
    """
    from ebbtide.lake.reader import open_lake as opened  # pyiceberg takes a second to import

    return opened(defaults, catalog)
