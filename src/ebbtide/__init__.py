"""Kafka's log retention for logs kept in Apache Iceberg; Python's front door is `open_lake`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebbtide.lake.reader import Lake

__version__ = "0.2.0"


def open_lake(defaults: Path | None = None, catalog: str = "lake") -> AbstractContextManager[Lake]:
    """Open the tables of one of Spark's catalogs until the block ends, to read them without Spark.

    `defaults` is a spark-defaults.conf; without it, the one in $SPARK_CONF_DIR. docs/python.md
    shows what can be read.
    """
    from ebbtide.lake.reader import open_lake as opened  # pyiceberg takes a second to import

    return opened(defaults, catalog)
