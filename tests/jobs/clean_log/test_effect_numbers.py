"""What a round tells of a partition, by what it did to the segments."""

from __future__ import annotations

from ebbtide.jobs.clean_log.segment_round import RoundEffect, RowsLeft, UnitNumbers, add_numbers
from ebbtide.kafka.compaction import Round
from ebbtide.state.topic_state import NEVER


def test_a_partition_without_a_segment_has_numbers() -> None:
    effect = RoundEffect(segments={0: []})
    add_numbers(effect, 0, Round(0, 0, 0), UnitNumbers(), RowsLeft.none())
    assert effect.numbers[0]["records_after"] == 0
    assert effect.next_clean_ms == {0: NEVER}
