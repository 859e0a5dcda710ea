"""One run of a contender in a Spark of its own; its name and its cell are the arguments.

Prints one line of JSON. The home, with the lake as before the round, is EBBTIDE_HOME.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.clean_log.contenders.cleaners import CONTENDERS, Contender
from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.clean_log.data.cells import Cell


def run(contender: Contender, cell: Cell, lake: Path) -> dict[str, Any]:
    """Session start, the work, what it used, what is left, and how long a flush would take."""
    started = time.perf_counter()
    builder = SparkSession.builder.appName("clean_log benchmark")
    if not contender.is_ours:
        # Statements that work in the JVM for long gain by both of its compilers.
        builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=4")
    spark = builder.getOrCreate()
    spark.sql("SELECT 1").collect()
    start_s = time.perf_counter() - started
    for name, value in contender.settings.items():
        spark.conf.set(name, value)
    for name, value in contender.properties.items():
        spark.sql(f"ALTER TABLE {contender.table} SET TBLPROPERTIES ('{name}' = '{value}')")
    os.sync()
    began = time.time()
    with Meter(os.getpid()) as meter:
        steps = contender.clean(spark, cell)
    flush_s = flush(lake, began)
    survivors = spark.sql(
        f"SELECT count(*) AS records, sum(offset) AS offset_sum FROM {contender.table}"
    ).first()
    assert survivors is not None
    return {
        "start_s": start_s,
        **meter.usage._asdict(),
        "flush_s": flush_s,
        "steps": steps,
        "survivors": survivors.asDict(),
    }


def flush(lake: Path, since: float) -> float:
    """Seconds to bring to the disk what was written since then; Spark itself does not wait."""
    fresh = [path for path in lake.rglob("*") if path.is_file() and path.stat().st_ctime >= since]
    started = time.perf_counter()
    for path in fresh:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - started


def main() -> None:
    name, cell = sys.argv[1], Cell.parse(sys.argv[2])
    lake = Path(os.environ["EBBTIDE_HOME"], "lake")
    print(json.dumps(run(CONTENDERS[name], cell, lake)))


if __name__ == "__main__":
    main()
