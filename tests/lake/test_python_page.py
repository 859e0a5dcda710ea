"""The page about Python: its examples run, and print what it says."""

import doctest

from ebbtide.lake.reader import Lake
from tests.lake_sandbox import ROOT, LakeSandbox, partition_result, state_of

PAGE = ROOT / "docs" / "python.md"


def test_the_examples_print_what_the_page_says(lake: LakeSandbox) -> None:
    lake.topic("log.flights", {0: state_of(log_start_offset=5), 1: state_of()})
    lake.topic("log.audit", {0: state_of()}, {"kafka.cleanup.policy": "delete"})
    lake.records("log.flights", [(0, 5), (0, 6), (1, 0)])
    lake.records("log.audit", [(0, 0), (0, 1)])
    lake.plan("log.audit", "delete_records", requested_by="ann")
    partitions = {0: partition_result(superseded=3)}
    lake.run("log.flights", "clean_log", partitions=partitions, rows_removed=3)
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.failed == 0
    assert outcome.attempted >= 5


def test_the_page_names_what_the_lake_has() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {part.partition("(")[0] for row in rows for part in row.split("`")[1::2] if "(" in part}
    assert named == {name for name in named if hasattr(Lake, name)}
    assert len(named) >= 10
