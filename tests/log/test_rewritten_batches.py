"""What a round makes of a batch that it covers: its header, its horizon and its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import NotCoveredError
from ebbtide.kafka.batch_header import ABORT, HEADER_BYTES
from ebbtide.kafka.compaction import (
    CODEC_FRAME_BYTES,
    Retention,
    Survivors,
    Verdict,
    drops_tombstones,
    rewrite,
)
from ebbtide.records.attributes import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from tests.log.builders import T0, data, ended, sent, with_horizon
from tests.log.rounds import KEPT, KEPT_EMPTY, NOW_MS, ROUND, SOME, THREE

ZSTD = 4
ALL = Survivors(3, False, T0, T0, 90, 90)


def test_a_batch_that_keeps_everything_is_not_touched() -> None:
    assert rewrite(THREE, KEPT, ALL, ROUND) is THREE


def test_a_batch_that_loses_records_starts_and_ends_in_time_with_those_left() -> None:
    assert rewrite(THREE, KEPT, SOME, ROUND) == THREE._replace(
        base_timestamp_ms=T0 + 5,
        max_timestamp_ms=T0 + 7,
        record_count=2,
        size_bytes=HEADER_BYTES + 60,
    )


def test_log_append_time_keeps_the_largest_timestamp() -> None:
    stamped = THREE._replace(attributes=LOG_APPEND_TIME, max_timestamp_ms=T0 + 9)
    after = rewrite(stamped, KEPT, SOME, ROUND)
    assert after is not None
    assert after.max_timestamp_ms == T0 + 9


def test_a_new_horizon_is_now_and_delete_retention_in_the_base_timestamp() -> None:
    after = rewrite(THREE, KEPT, ALL._replace(has_tombstone=True), ROUND)
    assert after == THREE._replace(attributes=DELETE_HORIZON, base_timestamp_ms=NOW_MS + 100)


def test_an_older_horizon_stays_when_records_go() -> None:
    after = rewrite(with_horizon(THREE, 7), KEPT, SOME._replace(has_tombstone=True), ROUND)
    assert after is not None
    assert after.delete_horizon_ms == 7


def test_an_emptied_batch_is_a_header_without_codec_and_horizon() -> None:
    flags = TRANSACTIONAL | CONTROL | LOG_APPEND_TIME
    batch = with_horizon(ended(0, ABORT, attributes=flags | ZSTD, producer_epoch=3), 7)
    assert rewrite(batch, KEPT_EMPTY, Survivors(0), ROUND) == batch._replace(
        attributes=flags, base_timestamp_ms=-1, record_count=0, size_bytes=61
    )


@pytest.mark.parametrize(
    ("verdict", "survivors"),
    [
        pytest.param(KEPT, Survivors(0), id="nothing is left of it"),
        pytest.param(Verdict(True, False, Retention.DELETE), ALL, id="it is discarded as a whole"),
    ],
)
def test_a_batch_goes_where(verdict: Verdict, survivors: Survivors) -> None:
    assert rewrite(THREE, verdict, survivors, ROUND) is None


@given(compressed=st.integers(20, 200), left=st.integers(2, 90))
def test_a_compressed_batch_shrinks_with_its_records(compressed: int, left: int) -> None:
    batch = THREE._replace(attributes=ZSTD, size_bytes=HEADER_BYTES + compressed)
    after = rewrite(batch, KEPT, SOME._replace(records_bytes=left), ROUND)
    assert after is not None
    assert after.attributes == ZSTD
    assert HEADER_BYTES < after.size_bytes <= batch.size_bytes
    assert after.size_bytes <= HEADER_BYTES + left + CODEC_FRAME_BYTES


def test_a_compressed_batch_with_a_new_horizon_keeps_its_size() -> None:
    batch = THREE._replace(attributes=ZSTD, size_bytes=HEADER_BYTES + 45)
    after = rewrite(batch, KEPT, ALL._replace(has_tombstone=True), ROUND)
    assert after is not None
    assert after.size_bytes == batch.size_bytes


@given(
    kept=st.integers(0, 3),
    has_tombstone=st.booleans(),
    horizon_ms=st.none() | st.integers(0, 2 * NOW_MS),
    retention=st.sampled_from(Retention),
)
def test_a_round_never_changes_what_fences_a_producer_or_moves_a_horizon(
    kept: int, has_tombstone: bool, horizon_ms: int | None, retention: Retention
) -> None:
    batch = sent(4, producer_epoch=2)._replace(last_offset=6, record_count=3)
    batch = batch if horizon_ms is None else with_horizon(batch, horizon_ms)
    left = Survivors(kept, has_tombstone and kept > 0, T0, T0, 30 * kept, 90)
    after = rewrite(batch, Verdict(False, False, retention), left, ROUND)
    if after is None:
        assert retention is Retention.DELETE or kept == 0
        return
    fences = ("base_offset", "last_offset", "producer_id", "producer_epoch", "control_type")
    assert all(getattr(after, name) == getattr(batch, name) for name in fences)
    assert after.record_count == kept
    if kept and horizon_ms is not None:
        assert after.delete_horizon_ms == horizon_ms


# -- batches of magic 0 and 1

LEGACY = data(2, 4, magic=1, size_bytes=34 + 90)
# Clean up to offset 5: a tombstone of old may go 100 ms after its segment's last change.
SEGMENTS = ((0, T0), (5, T0 + 200), (8, T0 + 300))


@pytest.mark.parametrize(
    ("first_dirty_offset", "modified_ms", "may_go"),
    [
        pytest.param(8, T0 + 100, True, id="its segment is old enough"),
        pytest.param(8, T0 + 101, False, id="its segment is a millisecond too young"),
        pytest.param(0, 0, True, id="nothing is clean, but its segment has no age"),
        pytest.param(0, 1, False, id="nothing is clean yet"),
    ],
)
def test_an_old_tombstone_goes_by_the_age_of_its_segment(
    first_dirty_offset: int, modified_ms: int, may_go: bool
) -> None:
    segments = ((0, modified_ms), *SEGMENTS[1:])
    this_round = ROUND._replace(first_dirty_offset=first_dirty_offset, segments=segments)
    assert drops_tombstones(LEGACY, this_round) is may_go


def test_a_batch_of_an_old_format_becomes_one_of_its_records_alone() -> None:
    left = SOME._replace(first_offset=3, last_offset=3, records=1)
    after = rewrite(LEGACY, KEPT, left, ROUND)
    assert after == LEGACY._replace(
        magic=2,
        header_base_offset=3,
        last_offset=3,
        base_timestamp_ms=T0 + 5,
        max_timestamp_ms=T0 + 7,
        record_count=1,
        size_bytes=HEADER_BYTES + 60,
    )
    assert (after.base_offset, after.written_base_offset) == (2, 3)


def test_a_batch_of_an_old_format_is_converted_although_it_keeps_everything() -> None:
    left = ALL._replace(has_tombstone=True, first_offset=2, last_offset=4)
    after = rewrite(LEGACY, KEPT, left, ROUND)
    assert after is not None
    assert (after.magic, after.delete_horizon_ms) == (2, NOW_MS + 100)


def test_an_old_format_has_no_empty_batch_to_end_a_round() -> None:
    with pytest.raises(NotCoveredError, match="magic 1 has no empty batch"):
        rewrite(LEGACY, KEPT_EMPTY, Survivors(0), ROUND)
