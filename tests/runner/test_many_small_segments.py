"""ingest_segments of very many segments that hold next to nothing, in a small driver."""

from pathlib import Path

import pytest

from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import submit
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import at

pytestmark = pytest.mark.long

PARTITIONS, SEGMENTS, RECORDS = 100, 10, 3


def test_a_thousand_small_segments_fit_into_a_small_driver(
    lake: LakeSandbox, tmp_path: Path
) -> None:
    """A writer that is open for each segment takes a megabyte or two, and there were a thousand."""
    segments = [[Message(f"k{i}", "v")] * RECORDS for i in range(SEGMENTS)]
    for partition in range(PARTITIONS):
        write_log(tmp_path / "source", "t", segments, {}, partition=partition)
    with (lake.home / "conf" / "spark-defaults.conf").open("a") as defaults:
        defaults.write("spark.driver.memory 700m\n")
    arguments = ["--source", str(tmp_path / "source"), "--cluster", "log"]
    done = submit(lake, "ingest_segments", *arguments, "--now", at(FIRST_MS).isoformat())
    assert "OutOfMemoryError" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout[-2_000:]
    for namespace, rows in (("log", RECORDS), ("log_batches", 1)):
        table = lake.session.table(f"lake.{namespace}.t")
        assert table.count() == PARTITIONS * SEGMENTS * rows
        files = lake.session.table(f"lake.{namespace}.t.files")
        assert files.count() == PARTITIONS * SEGMENTS
