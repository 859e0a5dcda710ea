"""Lakes on real services, the jobs of two nights on them, and what the tables hold afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ebbtide.lake.reader import open_lake
from ebbtide.settings.names import CATALOG, TopicName
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.runner.submit import submit

SAMPLE = ROOT / "sample" / "log"
CLUSTER = "sample"
TOPICS = ("audit", "flights")
WITH_LIMITS = "audit"  # the one that Airflow starts expire_segments for
FIRST_NIGHT, SECOND_NIGHT = "2026-11-22T01:00:00+00:00", "2026-11-23T01:00:00+00:00"
REQUEST = {
    "topics": [
        {"topic": f"{CLUSTER}.audit", "partitions": [{"partition": 0, "offset": 1500}]},
    ]
}
SETTINGS = ("history.expire.max-snapshot-age-ms=0", "ebbtide.max.delete.ratio=1")
# Runs a job with its arguments on a lake, to its end.
RunJob = Callable[..., None]
# Properties that name snapshots, tables or where the log came from.
OF_ONE_LAKE = ("ebbtide.seen.", "ebbtide.tidied", "ebbtide.tables", "ebbtide.source")


class CellSandbox(LakeSandbox):
    """A lake whose catalog, files and Spark are as these settings say."""

    def __init__(
        self, home: Path, catalog: Mapping[str, str], spark: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(home)
        lines = {f"spark.sql.catalog.{CATALOG}.{name}": value for name, value in catalog.items()}
        with (home / "conf" / "spark-defaults.conf").open("a") as file:
            file.writelines(f"{k} {v}\n" for k, v in {**lines, **(spark or {})}.items())


def run_job(lake: LakeSandbox, job: str, *arguments: str) -> None:
    """One spark-submit that must succeed."""
    done = submit(lake, job, *arguments)
    assert done.returncode == 0, f"{job} ended with {done.returncode}:\n{done.stdout}{done.stderr}"


def run_nights(lake: LakeSandbox, source: str = str(SAMPLE), run: RunJob = run_job) -> None:
    """Each job of two nights as Airflow submits it."""
    topics = [word for topic in TOPICS for word in ("--topic", f"{CLUSTER}.{topic}")]
    with_limits = ["--topic", f"{CLUSTER}.{WITH_LIMITS}"]
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    ingest = ("ingest_segments", "--source", source, "--cluster", CLUSTER, *settings)
    run(lake, *ingest, "--now", FIRST_NIGHT)
    run(lake, "mark_tombstones", *topics, "--now", FIRST_NIGHT)
    for now in (FIRST_NIGHT, SECOND_NIGHT):
        run(lake, "clean_log", *topics, "--now", now)
        run(lake, "expire_segments", *with_limits, "--now", now)
    run(lake, "delete_records", "--request", json.dumps(REQUEST), "--now", SECOND_NIGHT)
    run(lake, "expire_snapshots", *topics, "--now", SECOND_NIGHT)


def contents(lake: LakeSandbox) -> dict[str, Any]:
    """All rows of all topics' tables and views as hashes, their states, and what the runs said."""
    lake_contents: dict[str, Any] = {}
    for topic in TOPICS:
        name = TopicName(CLUSTER, topic)
        for table in (
            name.records_table,
            name.batches_table,
            name.committed_view,
            name.null_tombstones_view,
            name.latest_view,
        ):
            lake_contents[table] = rows_of(lake, table)
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        for topic in TOPICS:
            name = f"{CLUSTER}.{topic}"
            properties = opened.topic(name).properties
            lake_contents[name] = without_ids(properties)
            lake_contents[f"{name} live"] = opened.live_rows(name)
        for run in opened.runs():  # topics of one job end in any order
            numbers = (run.status, run.rows_removed, run.partitions)
            lake_contents.setdefault(f"runs of {run.job}, {run.topic}", []).append(numbers)
    return lake_contents


def rows_of(lake: LakeSandbox, table: str) -> tuple[int, int]:
    """How many rows a table has, and one number of all that they hold."""
    columns = ", ".join(f"`{name}`" for name in sorted(lake.session.table(table).columns))
    row_hash = f"bit_xor(xxhash64(to_json(struct({columns}))))"
    (row,) = lake.session.sql(f"SELECT count(*) AS rows, {row_hash} AS hash FROM {table}").collect()
    return row["rows"], row["hash"]


def without_ids(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings and state without what each lake has of its own."""
    return {name: value for name, value in properties.items() if not name.startswith(OF_ONE_LAKE)}
