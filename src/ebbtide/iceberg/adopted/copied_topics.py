"""List the topics of the lake that are copied from tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError
from ebbtide.iceberg.state_table import read_state
from ebbtide.iceberg.table_store import check_catalog
from ebbtide.log.settings.names import CATALOG, STATE_SUFFIX, TopicName, quoted
from ebbtide.log.state.topic_state import COPIED

log = logging.getLogger(__name__)


def copied_topics(spark: SparkSession) -> list[TopicName]:
    """Return the topics whose state names a table that they are copied from, by name."""
    check_catalog(spark)  # Spark opens the catalog here
    return sorted(name for name in _with_state(spark) if _is_copied(spark, name))


def _with_state(spark: SparkSession) -> Iterator[TopicName]:
    for (namespace,) in spark.sql(f"SHOW NAMESPACES IN {quoted(CATALOG)}").collect():
        if not namespace.endswith(STATE_SUFFIX):
            continue
        for row in spark.sql(f"SHOW TABLES IN {quoted(CATALOG, namespace)}").collect():
            yield TopicName(namespace.removesuffix(STATE_SUFFIX), row["tableName"])


def _is_copied(spark: SparkSession, name: TopicName) -> bool:
    try:
        held = read_state(spark, name)
    except EbbtideError as error:
        log.warning("%s is left out: %s", name, error)
        return False
    return held is not None and COPIED in held.properties
