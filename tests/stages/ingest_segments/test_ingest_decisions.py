"""How much of a source log is taken: decided from files and headers, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.errors import (
    AccessDeniedError,
    CorruptSegmentError,
    ForeignLogError,
    OffsetGapError,
    SourceError,
)
from ebbtide.log.continuation import SourceBatch
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.records.attributes import DELETE_HORIZON, TRANSACTIONAL
from ebbtide.records.files.log_directory import list_log_directory
from ebbtide.records.files.segment_reader import MAX_BATCH_BYTES, BatchLimits
from ebbtide.stages.ingest_segments import segment_source
from ebbtide.stages.ingest_segments.segment_source import (
    LEAST_TASK_BYTES,
    MOST_TASK_BYTES,
    WALK_SCHEMA,
    FileToWalk,
    spread,
    task_count,
    walk_file,
)
from ebbtide.stages.ingest_segments.source_log import (
    GapRule,
    HeldLog,
    SourceLog,
    first_offsets,
    read_back,
    take_log,
)
from ebbtide.stages.ingest_segments.stage import unread_segments
from ebbtide.stores.store import AMBIENT
from tests.log.log_files import marker, transactional
from tests.tables.partition_log import (
    MODIFIED_MS,
    T0,
    Segments,
    append,
    batch,
    checkpoint,
    damage,
    segment_path,
    touch,
    write_segments,
)

HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
DELETE = GapRule(is_compacted=False, accepts_all=False)
COMPACT = GapRule(is_compacted=True, accepts_all=False)
ACCEPT = GapRule(is_compacted=False, accepts_all=True)
NOTHING = HeldLog()


def take(directory: Path, held: HeldLog = NOTHING, rule: GapRule = DELETE) -> SourceLog:
    """What an ingest would take of partition 0."""
    (partition,) = list_log_directory(str(directory))
    unread = unread_segments(partition, held.state)
    rows = [
        rows
        for file in unread
        for rows in walk_file(
            FileToWalk(0, file.path, file.base_offset, file.size_bytes, file == unread[-1]),
            BatchLimits(MAX_BATCH_BYTES),
            AMBIENT,
        )
    ]
    walked = pa.Table.from_batches(rows, WALK_SCHEMA)
    first_read = unread[0].base_offset if unread else 0
    return take_log(read_back(partition, first_read, walked, {}), held, rule)


def held_after(log: SourceLog, **changes: Any) -> HeldLog:
    """The tables after `log` went into them; changes are the state's."""
    state = log.state_after(log.held.state, -1)
    assert state is not None
    names = list(SourceBatch._fields)
    rows = log.batches.select(names).to_pylist()
    last = rows[-1] if rows else log.held.last_batch
    state = state.moved(**changes)
    end = state.log_end_offset
    return HeldLog(state, records_end=end, batches_end=end, last_batch=last)


def offsets(log: SourceLog) -> list[int]:
    found: list[int] = log.batches.column("base_offset").to_pylist()
    return found


def physical_segments(log: SourceLog) -> list[int]:
    found: list[int] = log.batches.column("segment").to_pylist()
    return found


def error_of(log: SourceLog) -> str:
    (error,) = log.errors
    assert not log.batches.num_rows
    return str(error)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Offsets 0 to 9 in two segments, and an empty active one."""
    segments: Segments = {0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)], 10: []}
    return write_segments(tmp_path / "source", segments)


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


def test_the_same_source_again_leaves_the_state_as_it_is(source: Path) -> None:
    held = held_after(take(source))
    log = take(source, held)
    assert offsets(log) == []
    assert log.skipped == ["3 segments hold nothing new"]
    assert log.state_after(held.state, -1) == held.state


def test_growth_of_the_active_segment_stays_in_it_and_new_segments_follow(source: Path) -> None:
    held = held_after(take(source))
    append(source, 10, batch(10, 2))
    write_segments(source, {12: [batch(12)], 13: []})
    log = take(source, held)
    assert offsets(log) == [10, 12]
    assert physical_segments(log) == [10, 12]
    assert log.skipped == ["1 segments that the tables hold"]
    after = log.state_after(held.state, -1)
    assert after is not None
    assert after.log_end_offset == 13
    assert after.segments[2:] == (
        (10, MODIFIED_MS + 10 + 1_000),
        (12, MODIFIED_MS + 12),
        (13, MODIFIED_MS + 13),
    )


def test_the_max_event_time_never_decreases(source: Path) -> None:
    held = held_after(take(source), max_event_time_ms=T0)
    append(source, 10, batch(10))
    after = take(source, held).state_after(held.state, T0 - 5)
    assert after is not None
    assert after.max_event_time_ms == T0


class TestGaps:
    @pytest.fixture
    def gapped(self, tmp_path: Path) -> Path:
        segments: Segments = {0: [batch(0, 2), batch(4)], 5: [batch(7)], 8: []}
        return write_segments(tmp_path / "gapped", segments)

    def test_a_gap_is_an_error_without_compact(self, gapped: Path) -> None:
        log = take(gapped)
        assert error_of(log).startswith("expected offset 2 in t-0, found 4: 2 offsets are missing")
        assert isinstance(log.errors[0], OffsetGapError)
        assert log.state_after(None, -1) is None

    def test_compaction_explains_a_gap(self, gapped: Path) -> None:
        log = take(gapped, rule=COMPACT)
        assert offsets(log) == [0, 4, 7]
        assert log.errors == log.accepted_gaps == []

    def test_accepted_gaps_are_recorded(self, gapped: Path) -> None:
        log = take(gapped, rule=ACCEPT)
        assert offsets(log) == [0, 4, 7]
        assert log.accepted_gaps == [(2, 4), (5, 7)]

    def test_a_gap_before_an_empty_active_segment_is_one(self, tmp_path: Path) -> None:
        write_segments(tmp_path / "source", {0: [batch(0, 2)], 5: []})
        assert "found 5: 3 offsets are missing" in error_of(take(tmp_path / "source"))
        cleaned = take(tmp_path / "source", rule=COMPACT)
        assert cleaned.log_end_offset == 5
        assert [base for base, _ in cleaned.segments] == [0, 5]

    def test_a_gap_leaves_the_state_alone(self, source: Path) -> None:
        held = held_after(take(source))
        append(source, 10, batch(11))
        log = take(source, held)
        assert "expected offset 10" in error_of(log)
        assert log.state_after(held.state, -1) == held.state


class TestASourceThatLostOffsets:
    @pytest.fixture
    def held(self, source: Path) -> HeldLog:
        """The tables end at 10; meanwhile the source removed all up to 20."""
        held = held_after(take(source))
        for path in source.glob("*/*.log"):
            path.unlink()
        write_segments(source, {20: [batch(20, 2)]})
        return held

    @pytest.mark.parametrize("rule", [DELETE, COMPACT])
    def test_it_is_refused_with_the_number_of_lost_offsets(
        self, source: Path, held: HeldLog, rule: GapRule
    ) -> None:
        log = take(source, held, rule)
        assert isinstance(log.errors[0], OffsetGapError)
        assert "starts at 20: 10 offsets were removed there before they were" in error_of(log)

    @pytest.mark.parametrize("is_compacted", [False, True])
    def test_the_loss_can_be_accepted(
        self, source: Path, held: HeldLog, is_compacted: bool
    ) -> None:
        log = take(source, held, GapRule(is_compacted, accepts_all=True))
        assert offsets(log) == [20]
        assert log.accepted_gaps == [(10, 20)]
        after = log.state_after(held.state, -1)
        assert after is not None
        assert (after.log_start_offset, after.log_end_offset) == (0, 22)
        assert [base for base, _ in after.segments] == [0, 5, 10, 20]

    def test_a_source_without_a_batch_left_has_lost_them_too(
        self, source: Path, held: HeldLog
    ) -> None:
        write_segments(source, {20: []})
        assert "10 offsets were removed" in error_of(take(source, held))

    def test_offsets_below_its_log_start_offset_count_as_lost(self, source: Path) -> None:
        held = held_after(take(source))
        append(source, 10, batch(10, 2), batch(12, 4))
        checkpoint(source, LOG_START_OFFSET, {0: 14})
        assert "4 offsets were removed" in error_of(take(source, held))
        log = take(source, held, ACCEPT)
        assert offsets(log) == [12]
        assert log.visible_from == 14


class TestContinuation:
    def test_a_truncated_source_is_refused(self, source: Path) -> None:
        held = held_after(take(source))
        segment_path(source, 10).unlink()
        write_segments(source, {5: [batch(5, 3)]})
        log = take(source, held)
        assert isinstance(log.errors[0], ForeignLogError)
        assert "reach offset 10, which the table holds, found its end at 8" in error_of(log)
        assert log.state_after(held.state, -1) == held.state

    @pytest.mark.parametrize("rule", [DELETE, COMPACT])
    def test_a_tail_that_was_written_anew_is_refused(self, source: Path, rule: GapRule) -> None:
        held = held_after(take(source))
        write_segments(source, {5: [batch(5, 5, codec=1)], 10: [batch(10)]})
        assert "truncated and written anew" in error_of(take(source, held, rule))

    def test_another_leader_epoch_is_another_log(self, source: Path) -> None:
        held = held_after(take(source))
        write_segments(source, {5: [batch(5, 5, leader_epoch=1)]})
        assert "of leader epoch 1" in error_of(take(source, held, COMPACT))

    def test_other_batch_bounds_are_another_log(self, source: Path) -> None:
        held = held_after(take(source))
        write_segments(source, {5: [batch(5, 2), batch(7, 3)]})
        assert "found [5, 6]" in error_of(take(source, held, COMPACT))
        write_segments(source, {5: [batch(6, 4)]})
        assert "found [6, 9]" in error_of(take(source, held, COMPACT))

    def test_a_batch_across_the_end_is_another_log(self, source: Path) -> None:
        held = held_after(take(source))._replace(last_batch=None)
        segment_path(source, 10).unlink()
        write_segments(source, {5: [batch(5, 9)]})
        assert "found [5, 13] across it" in error_of(take(source, held, COMPACT))

    @pytest.mark.parametrize(
        "cleaned",
        [
            pytest.param([batch(5, 2, last_offset=9)], id="records removed"),
            pytest.param(
                [batch(5, 5, attributes=DELETE_HORIZON, base_timestamp_ms=T0 + 1)], id="horizon set"
            ),
            pytest.param([], id="batch removed"),
        ],
    )
    def test_a_source_that_was_compacted_since_is_taken(
        self, source: Path, cleaned: list[bytes]
    ) -> None:
        held = held_after(take(source))
        write_segments(source, {5: cleaned, 10: [batch(10)]})
        assert offsets(take(source, held, COMPACT)) == [10]
        assert "truncated and written anew" in error_of(take(source, held, DELETE))

    def test_a_batch_that_we_rewrote_is_compared_by_its_bounds(self, source: Path) -> None:
        held = held_after(take(source))
        assert held.last_batch is not None
        rewritten = {**held.last_batch, "crc": None, "record_count": 1}
        append(source, 10, batch(10))
        assert offsets(take(source, held._replace(last_batch=rewritten), COMPACT)) == [10]

    def test_a_last_batch_in_a_file_that_is_not_read_again_is_not_looked_for(
        self, source: Path
    ) -> None:
        """Retention keeps an old batch row for its producer's sake."""
        first = take(source)
        old = first.batches.select(SourceBatch._fields).to_pylist()[0]
        held = held_after(first)._replace(last_batch=old)
        append(source, 10, batch(10))
        assert offsets(take(source, held)) == [10]

    def test_what_a_killed_ingest_left_counts_as_held(self, source: Path) -> None:
        held = held_after(take(source))
        assert "reach offset 12" in error_of(take(source, held._replace(records_end=12)))

    def test_only_what_a_killed_ingest_did_not_write_is_read_again(self, source: Path) -> None:
        held = held_after(take(source))
        append(source, 10, batch(10, 2), batch(12, 2))
        log = take(source, held._replace(records_end=12))
        ((_, unread),) = log.unread()
        assert unread.column("base_offset").to_pylist() == [12]
        assert offsets(log) == [10, 12]


class TestHighWatermark:
    @pytest.mark.parametrize(
        ("watermark", "taken", "segments", "end"),
        [
            (10, [0, 2, 5], [0, 5, 10], 10),
            (5, [0, 2], [0, 5], 5),
            (4, [0], [0], 2),
            (0, [], [0], 0),
        ],
    )
    def test_only_what_is_below_it_is_taken(
        self, source: Path, watermark: int, taken: list[int], segments: list[int], end: int
    ) -> None:
        checkpoint(source, HIGH_WATERMARK, {0: watermark})
        log = take(source)
        assert offsets(log) == taken
        assert [base for base, _ in log.segments] == segments
        assert log.log_end_offset == end
        is_told = f"{3 - len(taken)} batches at or above the high watermark {watermark}"
        assert (is_told in log.skipped) == (watermark < 10)

    def test_one_behind_what_is_held_moves_nothing_back(self, source: Path) -> None:
        held = held_after(take(source))
        checkpoint(source, HIGH_WATERMARK, {0: 5})
        log = take(source, held)
        assert log.errors == []
        assert log.state_after(held.state, -1) == held.state


def test_a_new_partition_begins_at_its_log_start_offset(source: Path) -> None:
    checkpoint(source, LOG_START_OFFSET, {0: 3})
    log = take(source)
    assert offsets(log) == [0, 2, 5]
    assert log.visible.column("base_offset").to_pylist() == [2, 5]
    assert log.visible_from == 3
    state = log.state_after(None, -1)
    assert state is not None
    assert (state.log_start_offset, state.first_dirty_offset, state.log_end_offset) == (3, 3, 10)
    assert state.first_unmarked_offset == 3


class TestDamage:
    def test_a_bad_file_stops_the_log_before_it(self, source: Path) -> None:
        append(source, 10, batch(10))
        write_segments(source, {11: [batch(11)]})
        path = segment_path(source, 5)
        damage(path)
        log = take(source)
        (error,) = log.errors
        assert isinstance(error, CorruptSegmentError)
        assert str(error).startswith(f"{path}: expected CRC-32C 0x")
        assert "at position 0, found 0x" in str(error)
        assert offsets(log) == [0, 2]
        assert log.skipped == ["2 segments behind a file that cannot be read"]
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
            "bytes; left for the next time"
        ]
        append(source, 10, batch(11)[-4:])
        assert offsets(take(source, held_after(log))) == [11]

    def test_a_torn_batch_before_another_segment_is_damage(self, source: Path) -> None:
        append(source, 5, batch(10)[:-4])
        log = take(source)
        assert isinstance(log.errors[0], CorruptSegmentError)
        assert "in a segment that others follow" in str(log.errors[0])
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
            pytest.param(batch(9), "a base offset of 10 or more at position 0", id="descending"),
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
        after = log.state_after(held.state, -1)
        assert after is not None
        assert after.segments == ((12, MODIFIED_MS + 10 + 2_000), (13, MODIFIED_MS + 13))

    def test_segments_that_the_source_merged_stay_apart_here(self, source: Path) -> None:
        held = held_after(take(source))
        segment_path(source, 5).unlink()
        write_segments(source, {0: [batch(0, 2), batch(5, 5)], 10: [batch(10)]})
        log = take(source, held, COMPACT)
        after = log.state_after(held.state, -1)
        assert after is not None
        assert [base for base, _ in after.segments] == [0, 5, 10]

    def test_another_replicas_segments_inside_what_is_held_do_not_count(self, source: Path) -> None:
        append(source, 10, batch(10, 2), batch(12, 2))
        held = held_after(take(source))
        segment_path(source, 10).unlink()
        write_segments(source, {5: [batch(5, 5), batch(10, 2)], 12: [batch(12, 2), batch(14)]})
        log = take(source, held)
        assert physical_segments(log) == [10]
        after = log.state_after(held.state, -1)
        assert after is not None
        assert [base for base, _ in after.segments] == [0, 5, 10]

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
    after = take(source, held).state_after(held.state, -1)
    assert after is not None
    assert [modified for _, modified in after.segments] == [MODIFIED_MS, MODIFIED_MS + 5, 5]


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

    def test_also_when_a_killed_ingest_wrote_some_of_the_batches(self, tmp_path: Path) -> None:
        source = write_segments(tmp_path / "source", {0: transactions()[:3]})
        held = held_after(take(source))._replace(batches_end=5)
        append(source, 0, *transactions()[3:])
        log = take(source, held)
        assert first_offsets(log, {7: 4, 8: 1}).to_pylist() == [None, None, None, 1]


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


class TestTasks:
    @pytest.mark.parametrize(
        ("sizes", "tasks"),
        [
            pytest.param([10] * 50, 1, id="little files share a task"),
            pytest.param([LEAST_TASK_BYTES] * 3, 3, id="never more than files"),
            pytest.param([LEAST_TASK_BYTES] * 50, 4, id="two a core"),
            pytest.param([MOST_TASK_BYTES] * 50, 50, id="a task is not too much to lose"),
        ],
    )
    def test_files_are_read_in_few_tasks(self, sizes: list[int], tasks: int) -> None:
        assert task_count(sizes, cores=2) == tasks

    def test_each_gets_about_as_many_bytes_and_its_files_in_order(self) -> None:
        assert spread([1, 1, 5, 1, 1, 1, 0], 2) == [[2, 6], [0, 1, 3, 4, 5]]

    def test_no_task_is_empty(self) -> None:
        assert sorted(spread([0, 0, 0], 3)) == [[0], [1], [2]]


def test_a_file_one_may_not_read_is_no_corrupt_file(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(segment_source, "walk_segment", refused)
    (error,) = take(source).errors
    assert type(error) is SourceError
    assert error.path == str(segment_path(source, 0))
    assert str(error).startswith(f"{error.path}: expected a file that this user may read, found: ")


def test_a_store_that_refuses_is_no_corrupt_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / f"{0:020}.log")

    def refused(*_: object, **__: object) -> None:
        raise AccessDeniedError("expected a store that these credentials may use, found 403")

    monkeypatch.setattr(segment_source, "walk_segment", refused)
    file = FileToWalk(0, path, 0, 0, True)
    with pytest.raises(AccessDeniedError, match="found 403"):
        list(walk_file(file, BatchLimits(MAX_BATCH_BYTES), AMBIENT))
