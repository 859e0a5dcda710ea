"""Charts are coordinates: what a page shows without a script."""

from ebbtide.orchestration.pages.charts import Point, bar, chart, sparkline
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.text import number
from tests.lake_sandbox import state_of


def test_a_bar_goes_from_the_first_offset_to_the_log_end() -> None:
    segments = tuple(SegmentStart(base, 0) for base in (100, 150, 250))
    state = state_of(
        log_start_offset=120, first_dirty_offset=150, log_end_offset=300, segments=segments
    )
    made = bar(state, {"copy.log": 110})
    assert (made.start, made.first_dirty, made.active) == (100, 250, 750)
    assert made.boundaries == (250, 750)
    assert made.replicas[0].x == 50
    assert made.label == (
        "log start offset 120, first dirty offset 150, log end offset 300, 3 segments, "
        "copy.log starts at 110"
    )


def test_a_topic_that_is_not_compacted_has_no_dirty_part() -> None:
    segments = tuple(SegmentStart(base, 0) for base in (100, 250))
    state = state_of(first_dirty_offset=150, log_end_offset=300, segments=segments)
    made = bar(state, {}, is_compacted=False)
    assert made.first_dirty == made.active == 833.3
    assert "dirty" not in made.label


def test_an_empty_partition_has_a_bar() -> None:
    state = state_of(
        log_end_offset=0, first_dirty_offset=0, segments=(SegmentStart(0, 0),), log_start_offset=0
    )
    made = bar(state, {})
    assert (made.start, made.first_dirty, made.active) == (0, 0, 0)


def test_a_bar_of_many_segments_shows_some_of_their_boundaries() -> None:
    segments = tuple(SegmentStart(base, 0) for base in range(10_000))
    made = bar(state_of(log_end_offset=10_000, segments=segments), {})
    assert len(made.boundaries) <= 60


def test_a_chart_needs_two_points() -> None:
    assert chart("Size", "bytes", [Point(0, 3)], number) is None
    assert sparkline([3]) == ""
    made = chart("Size", "bytes", [Point(0, 0), Point(60_000, 1000)], number)
    assert made is not None
    assert made.path == "M0.0,120.0 L600.0,6.0"
    assert (made.highest, made.first, made.last) == (
        "1,000",
        "1970-01-01 00:00",
        "1970-01-01 00:01",
    )
    assert made.data == [[0, 60], [0, 1000]]


def test_what_single_runs_did_is_columns_that_no_line_joins() -> None:
    points = [Point(0, 500), Point(60_000, 1000)]
    made = chart("Removed", "records", points, number, has_columns=True)
    assert made is not None
    assert (made.path, made.area) == ("M0.0,120.0 L0.0,63.0 M600.0,120.0 L600.0,6.0", "")


def test_a_line_of_zeros_lies_at_the_bottom() -> None:
    assert sparkline([0, 0]) == "0.0,22.0 96.0,22.0"
