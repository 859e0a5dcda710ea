"""Keep `lake.ebbtide.runs` small: a day's rows become one file once the day is over."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import date, datetime, timedelta

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, is_transient
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.manifests import current_files
from ebbtide.iceberg.schema import RUNS_TABLE
from ebbtide.log.settings.names import CATALOG, quoted
from ebbtide.runs.outages import explained
from ebbtide.stages.expire_snapshots.stage import expire_run_snapshots

log = logging.getLogger(__name__)

# Days before these are one file already, unless no night has run for so long.
DAYS_BACK = 40


def tidy_runs(spark: SparkSession, now: datetime) -> None:
    """Merge files and expire snapshots; where the catalog is away, another night does it."""
    try:
        compact_runs(spark, now)
        expire_run_snapshots(spark)
    except Exception as failure:
        error = explained(failure)
        if not is_transient(error):
            raise
        log.warning("the table of runs is tidied another night: %s", error)


def compact_runs(spark: SparkSession, now: datetime) -> int:
    """Rewrite each past day's files as one file; return how many files were rewritten.

    Readers open only the days of a run, so one file a day keeps them fast. Where another
    application does the same at this moment, it is left to finish.
    """
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=DAYS_BACK)
    if not _is_any_in_pieces(spark, first.date(), today.date()):
        return 0
    where = f"started >= TIMESTAMP '{_text(first)}' and started < TIMESTAMP '{_text(today)}'"
    escaped = where.replace("'", "\\'")
    call = (
        f"CALL {quoted(CATALOG)}.system.rewrite_data_files(table => '{RUNS_TABLE}', "
        f"where => '{escaped}', options => map('min-input-files', '2', "
        "'max-concurrent-file-group-rewrites', '1'))"
    )
    try:
        row = commit(Step.REWRITE_FILES, lambda: spark.sql(call).first())
    except CommitConflictError as error:
        log.warning("the files of runs are merged by another: %s", error)
        return 0
    return 0 if row is None else int(row["rewritten_data_files_count"])


def _is_any_in_pieces(spark: SparkSession, first: date, today: date) -> bool:
    """Return whether a day from the first on and before today has several files."""
    files = current_files(spark, java_table(spark, RUNS_TABLE))
    count = Counter(day for file in files for day in file.partition.values())
    return any(of > 1 and first <= day < today for day, of in count.items())


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"
