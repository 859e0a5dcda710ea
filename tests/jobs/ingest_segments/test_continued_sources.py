"""Where an ingest goes on in its source: gaps, lost offsets, other logs, the high watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import (
    ForeignLogError,
    OffsetGapError,
)
from ebbtide.jobs.ingest_segments.source import GapRule
from ebbtide.kafka.continuation import SourceBatch
from ebbtide.records.attributes import DELETE_HORIZON
from tests.jobs.ingest_segments.taken_logs import (
    COMPACT,
    DELETE,
    error_of,
    held_after,
    offsets,
    source,
    take,
)
from tests.tables.partition_log import (
    T0,
    Segments,
    append,
    batch,
    checkpoint,
    segment_path,
    write_segments,
)

__all__ = ["source"]

HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
ACCEPT = GapRule(is_compacted=False, accepts_all=True)


TIERED = GapRule(is_compacted=True, accepts_all=False, is_tiered=True)


class TestTiers:
    """The local files of a topic with remote.storage.enable begin after its log does."""

    @pytest.fixture
    def local(self, tmp_path: Path) -> Path:
        source = write_segments(tmp_path / "local", {10: [batch(10, 5)], 15: []})
        checkpoint(source, LOG_START_OFFSET, {0: 4})
        return source

    def test_what_lies_in_the_remote_tier_is_missed_unless_that_is_accepted(
        self, local: Path
    ) -> None:
        log = take(local, rule=TIERED)
        assert isinstance(log.errors[0], OffsetGapError)
        assert error_of(log).startswith(
            "expected offset 4 in t-0, found that its files begin at 10: the topic has "
            "remote.storage.enable, so offsets 4 to 9 are in the remote tier"
        )
        log = take(local, rule=TIERED._replace(accepts_all=True))
        assert (offsets(log), log.accepted_gaps, log.log_start_offset) == ([10], [(4, 10)], 10)
        (local / LOG_START_OFFSET).unlink()
        assert "expected offset 0 in t-0, found" in error_of(take(local, rule=TIERED))

    def test_a_log_whose_files_are_all_local_is_whole_and_a_later_gap_is_not_called_lost(
        self, source: Path, local: Path
    ) -> None:
        checkpoint(source, LOG_START_OFFSET, {0: 0})
        log = take(source, rule=TIERED)
        assert (log.errors, log.skipped, log.log_end_offset) == ([], [], 10)
        write_segments(local, {12: [batch(12, 3)]})
        segment_path(local, 10).unlink()
        message = error_of(take(local, held_after(log), TIERED))
        assert "offsets 10 to 11 are in the remote tier" in message
        assert "ingest_topic" in message

    def test_a_checkpoint_below_the_first_file_is_reported(self, local: Path) -> None:
        """It may be older than a deletion by retention, so nothing is refused."""
        log = take(local, rule=COMPACT)
        assert offsets(log) == [10]
        assert log.skipped == [
            "offsets 4 to 9, from the checkpoint's log start offset to the first file: removed "
            "since, or in the remote tier, which ingest_topic reads"
        ]


class TestGaps:
    def test_a_gap_is_an_error_unless_compaction_explains_it_or_it_is_accepted(
        self, tmp_path: Path
    ) -> None:
        segments: Segments = {0: [batch(0, 2), batch(4)], 5: [batch(7)], 8: []}
        gapped = write_segments(tmp_path / "gapped", segments)
        log = take(gapped)
        assert error_of(log).startswith("expected offset 2 in t-0, found 4: 2 offsets are missing")
        assert isinstance(log.errors[0], OffsetGapError)
        assert log.state_after(None, -1) is None
        for rule, accepted in ((COMPACT, []), (ACCEPT, [(2, 4), (5, 7)])):
            log = take(gapped, rule=rule)
            assert offsets(log) == [0, 4, 7]
            assert (log.errors, log.accepted_gaps) == ([], accepted)

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
    @pytest.mark.parametrize("rule", [DELETE, COMPACT])
    def test_it_is_refused_with_the_number_of_lost_offsets_unless_that_is_accepted(
        self, source: Path, rule: GapRule
    ) -> None:
        """The tables end at 10; meanwhile the source removed all up to 20."""
        held = held_after(take(source))
        for path in source.glob("*/*.log"):
            path.unlink()
        write_segments(source, {20: [batch(20, 2)]})
        log = take(source, held, rule)
        assert isinstance(log.errors[0], OffsetGapError)
        assert "found its start at 20: 10 offsets were removed there before they were" in error_of(
            log
        )
        log = take(source, held, rule._replace(accepts_all=True))
        assert (offsets(log), log.accepted_gaps) == ([20], [(10, 20)])
        after = log.state_after(held.state, -1)
        assert after is not None
        assert (after.log_start_offset, after.log_end_offset) == (0, 22)
        assert [base for base, _ in after.segments] == [0, 5, 10, 20]
        write_segments(source, {20: []})  # no batch is left
        assert "10 offsets were removed" in error_of(take(source, held, rule))

    def test_offsets_below_its_log_start_offset_count_as_lost(self, source: Path) -> None:
        held = held_after(take(source))
        append(source, 10, batch(10, 2), batch(12, 4))
        checkpoint(source, LOG_START_OFFSET, {0: 14})
        assert "4 offsets were removed" in error_of(take(source, held))
        log = take(source, held, ACCEPT)
        assert offsets(log) == [12]
        assert log.visible_from == 14


# What lies where the tables end: the segments from there on, by which rule, and what that is.
ANOTHER_LOG: dict[str, tuple[Segments, list[GapRule], str]] = {
    "truncated": (
        {5: [batch(5, 3)]},
        [DELETE],
        "reach offset 10, the table's log end offset, found its end at 8",
    ),
    "a tail that was written anew": (
        {5: [batch(5, 5, codec=1)], 10: [batch(10)]},
        [DELETE, COMPACT],
        "truncated and written again",
    ),
    "another leader epoch": (
        {5: [batch(5, 5, leader_epoch=1)], 10: []},
        [COMPACT],
        "of leader epoch 1",
    ),
    "other batch bounds": ({5: [batch(5, 2), batch(7, 3)], 10: []}, [COMPACT], "found [5, 6]"),
    "another first offset": ({5: [batch(6, 4)], 10: []}, [COMPACT], "found [6, 9]"),
}
# Of a source that was compacted since.
CLEANED = {
    "records removed": [batch(5, 2, last_offset=9)],
    "horizon set": [batch(5, 5, attributes=DELETE_HORIZON, base_timestamp_ms=T0 + 1)],
    "batch removed": [],
}


class TestContinuation:
    @pytest.mark.parametrize("case", ANOTHER_LOG)
    def test_another_log_is_refused(self, source: Path, case: str) -> None:
        segments, rules, message = ANOTHER_LOG[case]
        held = held_after(take(source))
        segment_path(source, 10).unlink()
        write_segments(source, segments)
        for rule in rules:
            log = take(source, held, rule)
            assert isinstance(log.errors[0], ForeignLogError)
            assert message in error_of(log)
            assert log.state_after(held.state, -1) == held.state

    def test_a_batch_across_the_end_is_another_log(self, source: Path) -> None:
        held = held_after(take(source))._replace(last_batch=None)
        segment_path(source, 10).unlink()
        write_segments(source, {5: [batch(5, 9)]})
        assert "found batch [5, 13]: the source" in error_of(take(source, held, COMPACT))

    @pytest.mark.parametrize("cleaned", CLEANED)
    def test_a_source_that_was_compacted_since_is_taken(self, source: Path, cleaned: str) -> None:
        held = held_after(take(source))
        write_segments(source, {5: CLEANED[cleaned], 10: [batch(10)]})
        assert offsets(take(source, held, COMPACT)) == [10]
        assert "truncated and written again" in error_of(take(source, held, DELETE))

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
