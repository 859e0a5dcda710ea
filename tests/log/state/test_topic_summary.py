"""A topic in a few numbers: kept as JSON, read by this version and passed over by older ones."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ebbtide.ledger.topic_summary import VERSION, TopicSummary, parse_summary, summarize
from ebbtide.settings.config import parse_config
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState

SUMMARY = TopicSummary(
    cleanup_policy="compact,delete",
    is_enabled=True,
    partitions=1,
    records=17,
    closed_records=12,
    dirty_records=3,
    file_bytes=900,
    next_horizon_ms=5,
    oldest_event_ms=4,
)


def state(**changes: Any) -> PartitionState:
    """Segments from 0, 10 and 20, of which the last is active; dirty from 10 on."""
    starts = (SegmentStart(0, 4), SegmentStart(10, 0), SegmentStart(20, 0))
    return PartitionState(
        log_start_offset=0,
        log_end_offset=30,
        first_dirty_offset=10,
        first_unmarked_offset=30,
        segments=starts,
        **changes,
    )


def test_records_are_dirty_from_the_first_dirty_offset_to_the_active_segment() -> None:
    rows = {(0, 0): 9, (0, 10): 3, (0, 20): 5, (7, 0): 100}
    config = parse_config({"kafka.cleanup.policy": "delete, compact"})
    made = summarize(config, {0: state(next_clean_ms=5)}, rows, 900, {}, {}, 4)
    assert made == replace(SUMMARY, records=117)
    assert made.dirty_share == 0.25
    assert replace(made, closed_records=0).dirty_share is None


def test_a_job_adds_what_only_it_knows() -> None:
    partitions = {
        0: {"log_start_offset": 9, "low_watermark": 4, "tombstones_kept": 2, "markers_kept": 1},
        1: {"log_start_offset": 9, "low_watermark": -1, "tombstones_kept": 5},
    }
    made = summarize(parse_config({}), {}, {}, 0, partitions, {"drift": [{}, {}]})
    assert (made.waiting, made.low_watermark_lag, made.drifted_settings) == (8, 5, 2)
    none = summarize(parse_config({}), {}, {}, 0, {1: {"low_watermark": -1}}, {})
    assert (none.waiting, none.low_watermark_lag, none.drifted_settings) == (None, None, None)


def test_a_summary_is_read_back() -> None:
    assert parse_summary(SUMMARY.to_json()) == SUMMARY


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="a row of an older version"),
        pytest.param(json.dumps({"version": VERSION + 1, "topics": 3}), id="a newer version"),
        pytest.param(json.dumps({"version": VERSION}), id="a summary without its numbers"),
        pytest.param("cut of", id="no JSON"),
    ],
)
def test_what_is_not_understood_is_no_summary(text: str | None) -> None:
    assert parse_summary(text) is None


def test_numbers_of_a_later_version_are_passed_over() -> None:
    later = {**json.loads(SUMMARY.to_json()), "holds": 3}
    assert parse_summary(json.dumps(later)) == SUMMARY
