import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.lake.reader import LakeTopic, open_lake
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.moments import minute
from ebbtide.orchestration import report
from ebbtide.orchestration.deletions import newest_deletion
from ebbtide.orchestration.report import render_run
from ebbtide.text import WIDTH, aligned, number, seconds, size
from tests.lake_sandbox import MIDNIGHT, LakeSandbox, partition_result, state_of

CLEANED = partition_result(
    picked=True,
    records_before=100_000,
    records_after=60_000,
    bytes_before=1_000_000,
    bytes_after=600_000,
    superseded=39_000,
    aborted=700,
    tombstones_kept=40,
    tombstones_removed=300,
    next_horizon_ms=1_790_000_000_000,
)
EXPIRED = partition_result(
    segments_expired=2,
    records_before=60_000,
    records_after=50_000,
    bytes_before=600_000,
    bytes_after=500_000,
    log_start_offset=7,
)
LEFT = LeftOnDisk(oldest_snapshot_ms=1_767_312_000_000, old_files_ms=1_767_312_120_000)
FREED = {"bytes_written": 81_900, "bytes_freed": 2_500_000, "bytes_kept": 1_500, **LEFT.result()}
NIGHT = Path(__file__).parent / "night.txt"


def rendered(run_id: str = "run-1") -> str:
    with open_lake() as lake:
        return render_run(lake, run_id, lake.runs(run_id=run_id))


def first_row(topic: str) -> str:
    return next(line for line in rendered().splitlines() if line.startswith(f"{topic}    "))


def test_a_night(lake: LakeSandbox) -> None:
    lake.topic("log.flights", {0: state_of()})
    given = {
        "clean_log": {"partitions": {0: CLEANED}, "rows_removed": 40_000},
        "expire_segments": {"partitions": {0: EXPIRED}, "snapshot_ids": [1]},
        "expire_snapshots": {"topic": FREED},
    }
    for start, (job, numbers) in enumerate(given.items(), 1):
        times = [MIDNIGHT + timedelta(minutes=n) for n in (start, start + 1)]
        lake.run("log.flights", job, now=MIDNIGHT, started=times[0], ended=times[1], **numbers)
    if os.environ.get("REBUILD_GOLDEN"):
        NIGHT.write_text(rendered() + "\n")
    assert rendered() + "\n" == NIGHT.read_text()
    assert max(map(len, NIGHT.read_text().splitlines())) <= WIDTH


DELETED = partition_result(log_start_offset=273, records_removed=273)
COUNTED = "0 60,000 50,000 600,000 500,000 2 7 0"


@pytest.mark.parametrize(
    ("job", "numbers", "line"),
    [
        pytest.param("expire_segments", EXPIRED, COUNTED, id="that a job of the run counted"),
        pytest.param("delete_records", DELETED, "0 273 273 0", id="without a count before"),
    ],
)
def test_numbers_are_not_those_of_the_lake_at_this_moment(
    lake: LakeSandbox, job: str, numbers: dict[str, Any], line: str
) -> None:
    lake.topic("log.audit", {0: state_of()}, {"kafka.cleanup.policy": "delete"})
    lake.records("log.audit", [(0, offset) for offset in range(5)])
    lake.run("log.audit", job, partitions={0: numbers}, snapshot_ids=[1])
    assert first_row("log.audit").split() == ["log.audit", *line.split()]


def test_a_low_watermark_that_moved_is_shown_before_and_after(lake: LakeSandbox) -> None:
    lake.topic("log.audit", {0: state_of()})
    first = partition_result(low_watermark=1_000, low_watermark_before=-1, picked=True, reason="")
    last = partition_result(log_start_offset=2_730, low_watermark=2_730, low_watermark_before=1_000)
    lake.run("log.audit", "clean_log", partitions={0: first})
    ended = MIDNIGHT + timedelta(hours=9)
    lake.run("log.audit", "delete_records", partitions={0: last}, started=ended, ended=ended)
    assert first_row("log.audit").endswith("  2,730  1,000 → 2,730")


def test_a_night_that_touched_nothing_says_so(lake: LakeSandbox) -> None:
    lake.topic("log.a")
    lake.run("log.a", "expire_snapshots", partitions={0: partition_result()})
    assert "nothing to do: no record, segment or file was changed" in rendered()
    freed = {"partitions": {0: partition_result()}, "topic": FREED}
    lake.run("log.a", "expire_snapshots", run_id="run-2", **freed)
    assert "nothing to do" not in rendered("run-2")


def test_settings_that_were_changed_are_listed(lake: LakeSandbox) -> None:
    lake.topic("log.a")
    changes = {"kafka.retention.ms": [None, "5"], "kafka.cleanup.policy": ["compact", "delete"]}
    lake.run("log.a", "configure_topic", partitions={}, topic={"changes": changes})
    report = rendered()
    assert "log.a: kafka.retention.ms: not set -> 5\n" in f"{report}\n"
    assert "log.a: kafka.cleanup.policy: compact -> delete" in report
    assert "nothing to do" not in report


def test_what_waits_for_a_horizon_is_promised_a_date(lake: LakeSandbox) -> None:
    waits = {p: state_of(next_clean_ms=1_790_000_000_000 + p * 60_000) for p in range(2)}
    lake.topic("log.a", waits)
    lake.run("log.a", "clean_log", partitions={0: CLEANED})
    last = rendered().splitlines()[-1]
    assert last.startswith("log.a: a delete horizon is due at 2026-09-21 14:13 UTC. The first run ")
    assert last.endswith("removes its tombstones and markers, with or without new data.")


@pytest.mark.parametrize(
    ("next_clean_ms", "config"),
    [(-1, {}), (0, {}), (1_790_000_000_000, {"ebbtide.clean.without.new.data": "false"})],
    ids=["nothing waits", "the next round looks", "idle logs are left alone"],
)
def test_nothing_is_promised_that_no_run_will_do(
    lake: LakeSandbox, next_clean_ms: int, config: dict[str, str]
) -> None:
    config = {"kafka.cleanup.policy": "compact", **config}
    lake.topic("log.a", {0: state_of(next_clean_ms=next_clean_ms)}, config)
    # A batch that a horizon was set for may hold no tombstone any more.
    lake.batches("log.a", [(0, 4, 0x40, 1_790_000_060_000)])
    lake.run("log.a", "clean_log", partitions={0: CLEANED})
    assert "the first run at or after" not in rendered()


def test_single_records_that_expired_have_a_column_when_there_are_any(lake: LakeSandbox) -> None:
    lake.topic("log.a")
    lake.run("log.a", "expire_segments", partitions={0: {**EXPIRED, "records_expired": 0}})
    titles = rendered().splitlines()[4].split()
    assert titles.count("expired") == 1
    expired = {**EXPIRED, "records_expired": 1_234}
    lake.run("log.a", "expire_segments", run_id="run-2", partitions={0: expired})
    titles = rendered("run-2").splitlines()[4].split()
    assert titles.count("expired") == 2
    assert " 1,234 " in rendered("run-2")


def test_what_a_run_has_to_say_is_said(lake: LakeSandbox) -> None:
    lake.topic("log.a", {p: state_of() for p in (0, 1)})
    noted = partition_result(note="the state had no max event time")
    lake.run("log.a", "expire_segments", partitions={0: partition_result(), 1: noted})
    lines = rendered().splitlines()
    assert "log.a partition 1: the state had no max event time." in lines
    assert len([line for line in lines if "state had" in line]) == 1


def test_a_failure_is_named_unless_a_retry_mended_it(lake: LakeSandbox) -> None:
    lake.topic("log.a")
    lake.run("log.a", "clean_log", error=ConfigurationError("expected x, found y"))
    last = rendered().splitlines()[-1]
    assert last == "FAILED log.a in clean_log: ConfigurationError: expected x, found y"
    later = MIDNIGHT + timedelta(minutes=1)
    lake.run("log.a", "clean_log", partitions={0: CLEANED}, started=later, ended=later)
    assert "FAILED" not in rendered()


def test_a_run_without_rows_had_nothing_to_do(lake: LakeSandbox) -> None:
    assert rendered("run-9") == "run run-9: nothing to do, no job was started"


def test_an_old_run_shows_nothing_of_today(lake: LakeSandbox) -> None:
    lake.topic("log.a")
    lake.run("log.a", "expire_segments", partitions={0: EXPIRED}, rows_removed=3)
    assert "3 records were removed from the table" in rendered()
    lake.run("log.a", "clean_log", run_id="run-2", ended=MIDNIGHT + timedelta(days=1))
    assert "removed from the table" not in rendered()


def test_a_table_fits_its_width() -> None:
    table = aligned(["topic", "a\nb"], [["x" * 200, "1"]], width=40)
    assert max(map(len, table.splitlines())) == 40
    assert table.splitlines()[-1].startswith("x" * 36 + "…")


def test_how_values_are_shown() -> None:
    assert [number(None), number(1_234_567)] == ["-", "1,234,567"]
    assert [minute(-1), minute(None), minute(0)] == ["-", "-", "1970-01-01 00:00"]
    assert [seconds(None), seconds(1.26)] == ["-", "1.3"]
    assert [size(None), size(999), size(1_000)] == ["-", "999 B", "1.0 kB"]
    assert [size(-2_500_000), size(3 * 10**15)] == ["-2.5 MB", "3000.0 TB"]


def test_one_topic_that_cannot_be_shown_leaves_the_others(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("log.good", "log.odd"):
        lake.topic(name, {0: state_of()})
        lake.run(name, "clean_log", partitions={0: CLEANED}, rows_removed=3)

    def dates(topic: LakeTopic, *more: object) -> object:
        if topic.name == "log.odd":
            raise OverflowError("year 33712 is out of range")
        return newest_deletion(topic, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(report, "newest_deletion", dates)
    told = " ".join(rendered().split())
    assert (
        "log.odd: its delete horizons and dates are unknown: OverflowError: year 33712 is" in told
    )
    assert "log.good: 3 records were removed from the table on" in told
