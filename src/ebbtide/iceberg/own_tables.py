"""Create, write and read ebbtide's own tables, as they are declared, without a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from threading import Lock

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.creation import create_namespace, create_table
from ebbtide.iceberg.files.matching_rows import Asked, matching_files
from ebbtide.iceberg.files.small_appends import prepare_append
from ebbtide.iceberg.schema import COMMON
from ebbtide.iceberg.state_table import check_commits
from ebbtide.log.attempts import RUNS
from ebbtide.log.own_tables import OwnTable, R
from ebbtide.log.settings.names import CATALOG, OWN_NAMESPACE, quoted
from ebbtide.spark.jvm import iceberg_class

_TYPES = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "MAP<INT, BINARY>": pa.map_(pa.int32(), pa.binary()),
}
# Topics are worked on in threads, and a catalog may check and create in two steps.
_ONE_AT_A_TIME = Lock()


def arrow_schema(table: OwnTable[R], unit: str = "us") -> pa.Schema:
    """Return the columns as Arrow has them, with times in this unit."""
    types = {**_TYPES, "TIMESTAMP": pa.timestamp(unit, tz="UTC")}
    return pa.schema([(name, types[kind]) for name, kind in table.types.items()])


def create_own(spark: SparkSession, table: OwnTable[R], catalog: str = CATALOG) -> None:
    """Create the table where it does not exist, in a catalog that jobs can rely on."""
    name = table.in_catalog(catalog)
    with _ONE_AT_A_TIME:
        if not table_exists(spark, name):
            check_commits(spark, catalog)
            create_namespace(spark, quoted(catalog, OWN_NAMESPACE))
            properties = {**COMMON, **table.properties}
            create_table(spark, name, table.columns, properties, [("day", table.day)])


def create_runs(spark: SparkSession) -> None:
    """Create `lake.ebbtide.runs` where it does not exist; one of an older version gets columns."""
    create_own(spark, RUNS)
    if not _has_summary(spark):
        text = iceberg_class(spark, "types.Types$StringType").get()
        update = open_table(spark, RUNS.in_catalog()).java.updateSchema().addColumn("summary", text)
        try:
            update.commit()
        except Py4JJavaError:  # another job may be faster
            if not _has_summary(spark):
                raise


def _has_summary(spark: SparkSession) -> bool:
    columns = open_table(spark, RUNS.in_catalog()).metadata.columns
    return any(column.name == "summary" for column in columns)


def append_own(
    spark: SparkSession,
    table: OwnTable[R],
    rows: Sequence[R],
    step: Step,
    catalog: str = CATALOG,
    *,
    not_before_last: bool = False,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Append the rows to the table, which is created with the first, by one commit.

    `check` is called right before it, and raises if the rows must not be written any more.
    """
    create_own(spark, table, catalog)
    cells = pa.Table.from_pylist(list(map(table.to_cells, rows)), schema=arrow_schema(table))
    name = table.in_catalog(catalog)
    prepared = prepare_append(spark, name, cells, table.day, not_before_last=not_before_last)

    def append() -> object:
        check()
        return prepared()

    commit(step, append)


def read_own(
    spark: SparkSession,
    table: OwnTable[R],
    column: str,
    texts: Iterable[str],
    since: datetime | None = None,
) -> list[R]:
    """Return the rows that have one of the texts in a column, from a time on, in no order."""
    name, texts = table.in_catalog(), frozenset(texts)
    asked = Asked(column, texts, None if since is None else (table.day, since))
    found = list(matching_files(spark, name, asked))
    parts = [of.rows for of in found]
    if any(of.has_deletes for of in found):  # of another tool: Spark leaves out what they delete
        rows = spark.table(name).where(F.col(column).isin(*texts))
        parts = [asked.among(rows.toArrow())]
    return [table.to_row(cells) for part in parts for cells in part.to_pylist()]
