"""How much of a source log is taken: decided from files and headers, without Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ebbtide.errors import (
    AccessDeniedError,
    CorruptSegmentError,
    SourceError,
)
from ebbtide.jobs.ingest_segments import source as segment_source
from ebbtide.jobs.ingest_segments.source import (
    LEAST_TASK_BYTES,
    MOST_TASK_BYTES,
    GapRule,
    SourceLog,
    first_offsets,
    spread,
    task_count,
)
from ebbtide.records.attributes import TRANSACTIONAL
from ebbtide.records.segment_reader import MAX_BATCH_BYTES
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState
from tests.jobs.ingest_segments.taken_logs import (
    COMPACT,
    DELETE,
    error_of,
    held_after,
    offsets,
    source,
    take,
)
from tests.log.log_files import marker, transactional
from tests.records.files.loaded_logs import CASES_REFUSED, Case, two_times, write_case
from tests.tables.partition_log import (
    MODIFIED_MS,
    T0,
    append,
    batch,
    damage,
    segment_path,
    touch,
    write_segments,
)

__all__ = ["source"]


def state_after(log: SourceLog, max_event_time_ms: int = -1) -> PartitionState:
    after = log.state_after(log.held.state, max_event_time_ms)
    assert after is not None
    return after


def bases_after(log: SourceLog) -> list[int]:
    return [base for base, _ in state_after(log).segments]


def physical_segments(log: SourceLog) -> list[int]:
    segments: list[int] = log.batches.column("segment").to_pylist()
    return segments


def test_a_new_partition_is_taken_whole_with_its_empty_active_segment(source: Path) -> None:
    log = take(source)
    assert offsets(log) == [0, 2, 5]
    assert log.records == 10
    assert log.skipped == []
    assert log.state_after(None, 77) == PartitionState(
        log_start_offset=0,
        log_end_offset=10,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=((0, MODIFIED_MS), (5, MODIFIED_MS + 5), (10, MODIFIED_MS + 10)),
        max_event_time_ms=77,
    )


@pytest.mark.parametrize("case", CASES_REFUSED, ids=[case.name for case in CASES_REFUSED])
def test_a_copy_that_is_not_whole_is_refused_and_taken_up_to_there(
    tmp_path: Path, case: Case
) -> None:
    """The batches of its first file are taken."""
    write_case(tmp_path, case, "t")
    log = take(tmp_path, rule=COMPACT)
    (error,) = log.errors
    assert re.search(case.refusal, str(error))
    if "link" in case.refusal:
        assert not log.batches.num_rows
    else:
        way_out = "Copy it again, and delete files from the copy that the broker no longer has"
        assert way_out in str(error)
        assert log.log_end_offset == log.batches.column("last_offset").to_pylist()[-1] + 1
        assert log.batches.num_rows == len(case.files[min(case.files)])


@pytest.mark.parametrize("stale", [3, 8], ids=["within the last file", "over its end"])
@pytest.mark.parametrize("rule", [COMPACT, DELETE], ids=["compact", "delete"])
def test_a_second_ingest_refuses_a_file_that_overlaps_what_is_held(
    tmp_path: Path, stale: int, rule: GapRule
) -> None:
    source = write_segments(tmp_path, {0: [batch(0, 10)]})
    log = take(source)
    write_segments(source, {stale: [batch(stale, 5)]})
    error = error_of(take(source, held_after(log), rule))
    assert re.search(two_times(9, stale), error)


def test_the_same_source_again_leaves_the_state_as_it_is(source: Path) -> None:
    held = held_after(take(source))
    log = take(source, held)
    assert offsets(log) == []
    assert log.skipped == ["3 segments without new batches"]
    assert log.state_after(held.state, -1) == held.state


def test_growth_of_the_active_segment_stays_in_it_and_new_segments_follow(source: Path) -> None:
    held = held_after(take(source))
    append(source, 10, batch(10, 2))
    write_segments(source, {12: [batch(12)], 13: []})
    log = take(source, held)
    assert offsets(log) == [10, 12]
    assert physical_segments(log) == [10, 12]
    assert log.skipped == ["1 segments that were ingested before"]
    after = state_after(log)
    assert after.log_end_offset == 13
    assert after.segments[2:] == (
        (10, MODIFIED_MS + 10 + 1_000),
        (12, MODIFIED_MS + 12),
        (13, MODIFIED_MS + 13),
    )


def test_the_max_event_time_never_decreases(source: Path) -> None:
    held = held_after(take(source), max_event_time_ms=T0)
    append(source, 10, batch(10))
    assert state_after(take(source, held), T0 - 5).max_event_time_ms == T0


class TestDamage:
    def test_a_bad_file_stops_the_log_before_it(self, source: Path) -> None:
        append(source, 10, batch(10))
        write_segments(source, {11: [batch(11)]})
        damage(segment_path(source, 5))
        log = take(source)
        (error,) = log.errors
        assert isinstance(error, CorruptSegmentError)
        assert offsets(log) == [0, 2]
        assert log.skipped == ["2 segments after an unreadable file"]
        assert log.log_end_offset == 5
        assert [base for base, _ in log.segments] == [0, 5]

    def test_a_bad_file_is_the_only_thing_that_is_said_of_it(self, source: Path) -> None:
        append(source, 10, batch(10))
        held = held_after(take(source))
        append(source, 10, batch(11))
        damage(segment_path(source, 10))
        log = take(source, held)
        assert len(log.errors) == 1
        assert "at position" in error_of(log)
        assert log.state_after(held.state, -1) == held.state

    def test_a_new_partition_that_begins_with_it_gets_no_state(self, source: Path) -> None:
        damage(segment_path(source, 0))
        log = take(source)
        assert len(log.errors) == 1
        assert log.state_after(None, -1) is None

    def test_a_torn_batch_at_the_end_is_left_and_taken_once_it_is_whole(self, source: Path) -> None:
        path = segment_path(source, 10)
        append(source, 10, batch(10), batch(11)[:-4])
        size_bytes = len(batch(11))
        log = take(source)
        assert log.errors == []
        assert offsets(log) == [0, 2, 5, 10]
        assert log.skipped == [
            f"{path}: a torn batch at position {size_bytes}, {size_bytes - 4} of {size_bytes} "
            "bytes; the next run reads it again"
        ]
        append(source, 10, batch(11)[-4:])
        assert offsets(take(source, held_after(log))) == [11]

    def test_a_torn_batch_before_another_segment_is_damage(self, source: Path) -> None:
        append(source, 5, batch(10)[:-4])
        log = take(source)
        assert isinstance(log.errors[0], CorruptSegmentError)
        assert "in a segment that is not the log's last" in str(log.errors[0])
        assert offsets(log) == [0, 2]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            pytest.param(
                b"just some text that is no log", "magic 0, 1 or 2 at position 0", id="foreign"
            ),
            pytest.param(
                batch(10)[:8] + (2**31 - 1).to_bytes(4, "big") + batch(10)[12:],
                f"to {MAX_BATCH_BYTES} bytes (the largest allowed) at position 0",
                id="oversized",
            ),
            pytest.param(batch(9), "a base offset at or above 10 at position 0", id="descending"),
        ],
    )
    def test_other_bytes_are_named(self, source: Path, data: bytes, message: str) -> None:
        append(source, 10, data)
        log = take(source)
        (error,) = log.errors
        assert message in str(error)
        assert offsets(log) == [0, 2, 5]


class TestSegments:
    def test_what_retention_rolled_here_takes_the_rest_of_the_sources_segment(
        self, source: Path
    ) -> None:
        append(source, 10, batch(10, 2))
        held = held_after(take(source), segments=(SegmentStart(12, 99),))
        assert take(source, held).state_after(held.state, -1) == held.state
        append(source, 10, batch(12))
        write_segments(source, {13: [batch(13)]})
        log = take(source, held)
        assert physical_segments(log) == [12, 13]
        assert state_after(log).segments == ((12, MODIFIED_MS + 10 + 2_000), (13, MODIFIED_MS + 13))

    def test_segments_that_the_source_merged_stay_apart_here(self, source: Path) -> None:
        held = held_after(take(source))
        segment_path(source, 5).unlink()
        write_segments(source, {0: [batch(0, 2), batch(5, 5)], 10: [batch(10)]})
        assert bases_after(take(source, held, COMPACT)) == [0, 5, 10]

    def test_another_replicas_segments_inside_what_is_held_do_not_count(self, source: Path) -> None:
        append(source, 10, batch(10, 2), batch(12, 2))
        held = held_after(take(source))
        segment_path(source, 10).unlink()
        write_segments(source, {5: [batch(5, 5), batch(10, 2)], 12: [batch(12, 2), batch(14)]})
        log = take(source, held)
        assert physical_segments(log) == [10]
        assert bases_after(log) == [0, 5, 10]

    def test_what_others_did_to_the_segments_meanwhile_stays(self, source: Path) -> None:
        held = held_after(take(source))
        write_segments(source, {10: [batch(10)], 11: []})
        log = take(source, held)
        assert held.state is not None
        merged = held.state.moved(segments=((0, 1), (10, 2)), log_start_offset=3)
        after = log.state_after(merged, -1)
        assert after is not None
        assert after.log_start_offset == 3
        assert [base for base, _ in after.segments] == [0, 10, 11]


def test_a_modified_time_alone_moves_the_active_segments_only(source: Path) -> None:
    held = held_after(take(source))
    for base in (0, 5, 10):
        touch(segment_path(source, base), 5)
    modified = [modified for _, modified in state_after(take(source, held)).segments]
    assert modified == [MODIFIED_MS, MODIFIED_MS + 5, 5]


class TestTransactions:
    def test_a_marker_names_the_first_offset_of_its_transaction(self, tmp_path: Path) -> None:
        log = take(write_segments(tmp_path / "source", {0: transactions()}))
        assert first_offsets(log, {}).to_pylist() == [None, None, None, 0, None, None, 1]

    def test_also_when_the_transaction_was_open_at_the_last_ingest(self, tmp_path: Path) -> None:
        source = write_segments(tmp_path / "source", {0: transactions()[:3]})
        held = held_after(take(source))
        append(source, 0, *transactions()[3:])
        log = take(source, held)
        assert first_offsets(log, {7: 0, 8: 1}).to_pylist() == [0, None, None, 1]


def transactions() -> list[bytes]:
    """Producer 7 aborts [0, 3) and goes on at 4; producer 8 commits what began at 1."""
    return [
        transactional(0, "a", producer=7, at_ms=T0),
        transactional(1, "b", producer=8, at_ms=T0),
        transactional(2, "a", producer=7, at_ms=T0),
        marker(3, "ABORT", producer=7, at_ms=T0),
        transactional(4, "a", producer=7, at_ms=T0),
        batch(5, attributes=TRANSACTIONAL, producer_id=8, producer_epoch=0, base_sequence=1),
        marker(6, "COMMIT", producer=8, at_ms=T0),
    ]


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        pytest.param([10] * 50, 1, id="little files share a task"),
        pytest.param([LEAST_TASK_BYTES] * 3, 3, id="never more than files"),
        pytest.param([LEAST_TASK_BYTES] * 50, 4, id="two a core"),
        pytest.param([MOST_TASK_BYTES] * 50, 50, id="a task is not too much to lose"),
    ],
)
def test_files_are_read_in_few_tasks(sizes: list[int], tasks: int) -> None:
    assert task_count(sizes, cores=2) == tasks


def test_each_task_gets_about_as_many_bytes_and_its_files_in_order() -> None:
    assert spread([1, 1, 5, 1, 1, 1, 0], 2) == [[2, 6], [0, 1, 3, 4, 5]]
    assert sorted(spread([0, 0, 0], 3)) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (PermissionError(13, "Permission denied"), SourceError),
        (AccessDeniedError("these credentials may use, found 403"), AccessDeniedError),
    ],
)
def test_a_file_that_is_denied_is_no_corrupt_file(
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    raised: type[Exception],
) -> None:
    """By the file system, or by an object store."""

    def refused(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(segment_source, "walk_segment", refused)
    if raised is AccessDeniedError:
        with pytest.raises(AccessDeniedError, match="found 403"):
            take(source)
        return
    (error,) = take(source).errors
    assert type(error) is SourceError
    assert error.path == str(segment_path(source, 0))
    assert str(error).startswith(f"{error.path}: expected a file that this user may read, found: ")
