"""Keep `lake.ebbtide.runs` and `undo_points` small: a day's rows become one file in the end."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import date, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, is_transient
from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.manifests import current_files
from ebbtide.log.attempts import RUNS
from ebbtide.log.own_tables import OwnTable
from ebbtide.log.settings.names import CATALOG, quoted
from ebbtide.log.undo.points import UNDO_POINTS
from ebbtide.runs.outages import explained
from ebbtide.stages.expire_snapshots.stage import expire_own_snapshots

log = logging.getLogger(__name__)

# Days before these are one file already, unless no night has run for so long.
DAYS_BACK = 40


# How many days keep their small files: points are read by topic, so each keeps its own file for as
# long as runs can be undone by default.
YOUNG_DAYS = {UNDO_POINTS.name: 4}


def tidy_runs(spark: SparkSession, now: datetime) -> None:
    """Merge files and expire snapshots; where the catalog is away, another night does it."""
    try:
        has_points = table_exists(spark, UNDO_POINTS.in_catalog())
        for table in (RUNS, UNDO_POINTS) if has_points else (RUNS,):
            compact_days(spark, table, now)
            expire_own_snapshots(spark, table.in_catalog())
    except Exception as failure:
        error = explained(failure)
        if not is_transient(error):
            raise
        log.warning("the table of runs is tidied another night: %s", error)


def compact_days(spark: SparkSession, table: OwnTable[Any], now: datetime) -> int:
    """Rewrite each past day's files as one file; return how many files were rewritten.

    Readers open only the days of a run, so one file a day keeps them fast. Where another
    application does the same at this moment, it is left to finish.
    """
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    young, name, column = YOUNG_DAYS.get(table.name, 0), table.in_catalog(), quoted(table.day)
    end, first = today - timedelta(days=young), today - timedelta(days=DAYS_BACK)
    if not _is_any_in_pieces(spark, name, first.date(), end.date()):
        return 0
    where = f"{column} >= TIMESTAMP '{_text(first)}' and {column} < TIMESTAMP '{_text(end)}'"
    escaped = where.replace("'", "\\'")
    call = (
        f"CALL {quoted(CATALOG)}.system.rewrite_data_files(table => '{name}', "
        f"where => '{escaped}', options => map('min-input-files', '2', "
        "'max-concurrent-file-group-rewrites', '1'))"
    )
    try:
        row = commit(Step.REWRITE_FILES, lambda: spark.sql(call).first())
    except CommitConflictError as error:
        log.warning("the files of %s are merged by another: %s", name, error)
        return 0
    return 0 if row is None else int(row["rewritten_data_files_count"])


def _is_any_in_pieces(spark: SparkSession, table: str, first: date, end: date) -> bool:
    """Return whether a day from the first on and before the end has several files."""
    files = current_files(open_table(spark, table))
    count = Counter(day for file in files for day in file.partition.values())
    return any(of > 1 and first <= day < end for day, of in count.items())


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"
