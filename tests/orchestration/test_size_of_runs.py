"""What one run's rows cost to read, however long the table of runs has grown."""

import json
import random
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import PurePath

import pytest

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.own_tables import create_own
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.own_tables import MAX_RUN_MANIFEST_BYTES, RUNS
from ebbtide.orchestration.driver import CLOCK_SLACK, began
from ebbtide.spark.jvm import iceberg_class
from tests.lake_sandbox import LakeSandbox

TOPICS = 50
RUN_ID = "scheduled__2026-03-01"
NIGHT = datetime(2026, 3, 1, 2, tzinfo=UTC)
FEW_NIGHTS = 10
TEN_YEARS = 3652


def fill(lake: LakeSandbox, nights: int) -> None:
    """So many nights of all topics, a file a day as compaction leaves them."""
    create_own(lake.session, RUNS)
    lake.session.sql(
        f"""
        INSERT INTO {RUNS.in_catalog()} (run_id, dag, task, job, topic, started, ended, now, status)
        SELECT date_format(night, "'scheduled__'yyyy-MM-dd"), 'nightly_retention', 'clean_log',
            'clean_log', concat('log.t', topic), night, night, night, 'succeeded'
        FROM (
            SELECT TIMESTAMP '2026-03-01 02:00:00' - make_interval(0, 0, 0, cast(id AS INT)) night
            FROM range({nights})
        ) CROSS JOIN (SELECT id topic FROM range({TOPICS}))
        """
    )


@pytest.mark.long
def test_after_ten_years_one_runs_rows_are_read_at_the_price_of_today(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, FEW_NIGHTS)
    today = bytes_read(monkeypatch)
    add_years_before(lake, TEN_YEARS - FEW_NIGHTS)
    files = lake.session.sql(f"SELECT count(*) FROM {RUNS.in_catalog()}.data_files").first()
    assert files is not None
    assert files[0] == TEN_YEARS
    then = bytes_read(monkeypatch)
    # The same data files, and no manifest but those that list these days.
    assert then["parquet"] == today["parquet"]
    assert len(today["avro"]) == 2  # a manifest list and a manifest
    assert len(then["avro"]) <= 3
    assert max(then["avro"]) < 2 * MAX_RUN_MANIFEST_BYTES
    assert len(then["json"]) == len(today["json"]) == 1


def bytes_read(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The sizes of all files that reading one run's rows opens, by their kind."""
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

    opened: dict[str, int] = {}
    new_input = PyArrowFileIO.new_input

    def counted(io: PyArrowFileIO, location: str) -> PyArrowFile:
        file = new_input(io, location)
        opened[location] = len(file)
        return file

    with monkeypatch.context() as patched, open_lake() as lake:
        patched.setattr(PyArrowFileIO, "new_input", counted)
        runs = lake.runs(NIGHT - CLOCK_SLACK, run_id=RUN_ID, dag="nightly_retention")
    assert len(runs) == TOPICS
    sizes: dict[str, list[int]] = {"json": [], "avro": [], "parquet": []}
    for location, size_bytes in opened.items():
        sizes[PurePath(location).suffix[1:]].append(size_bytes)
    return {kind: sorted(lengths) for kind, lengths in sizes.items()}


def add_years_before(lake: LakeSandbox, days: int) -> None:
    """List a file for each day before those that are there; nobody is to open it.

    Manifests are merged as after a hundred commits.
    """
    merges = "'commit.manifest.min-count-to-merge' = '2'"
    lake.session.sql(f"ALTER TABLE {RUNS.in_catalog()} SET TBLPROPERTIES ({merges})")
    table = java_table(lake.session, RUNS.in_catalog())
    parser = iceberg_class(lake.session, "ScanTaskParser")
    with_metrics = table.newScan().includeColumnStats().planFiles().iterator()
    append = table.newAppend()
    for task in tasks_of_earlier_days(parser.toJson(with_metrics.next()), days):
        append = append.appendFile(parser.fromJson(task, True).file())
    append.commit()


def tasks_of_earlier_days(task: str, days: int) -> Iterator[str]:
    """A task like this one for each earlier day, oldest first; paths, bounds and sizes differ."""
    rng = random.Random(1)
    described = json.loads(task)
    file = described["data-file"]
    (day,) = file["partition"]
    sizes, path = file["column-sizes"]["values"], file["file-path"]
    del file["first-row-id"]  # Iceberg numbers the rows of a new file
    for ago in range(days, 0, -1):
        night = NIGHT - timedelta(days=FEW_NIGHTS + ago - 1)
        file["partition"] = [f"{night:%Y-%m-%d}"]
        file["file-path"] = f"{PurePath(path).parent.parent}/{rng.randbytes(16).hex()}.parquet"
        file["column-sizes"]["values"] = [size + rng.randrange(30) for size in sizes]
        yield json.dumps(described).replace(
            bound_of(datetime.fromisoformat(f"{day}T02:00:00+00:00")), bound_of(night)
        )


def bound_of(time: datetime) -> str:
    """A time as a bound of a column."""
    return struct.pack("<q", int(time.timestamp()) * 10**6).hex().upper()


def test_a_run_that_was_cleared_still_finds_its_first_attempts() -> None:
    class DagRun:
        run_after = NIGHT
        start_date = NIGHT + timedelta(days=30)

    assert began(DagRun()) == NIGHT - CLOCK_SLACK
