"""The groups of tombstones that a partition's state has until they are off the disk."""

from __future__ import annotations

from ebbtide.state.deletes import (
    MOST,
    UNSEEN,
    Deletes,
    Files,
    Stage,
    after_round,
    after_tidying,
    counted_end,
    pending,
    settled,
    with_found,
)

COUNTED = Deletes(Stage.COUNTED, UNSEEN, 0, 100)


def marked(written_ms: int, first: int, end: int) -> Deletes:
    return Deletes(Stage.MARKED, written_ms, first, end)


def waiting(written_ms: int, horizon_ms: int, first: int = 0, end: int = 10) -> Deletes:
    return Deletes(Stage.HORIZON_SET, written_ms, first, end, horizon_ms)


def removed(written_ms: int, until: int = UNSEEN, first: int = 0, end: int = 10) -> Deletes:
    return Deletes(Stage.REMOVED, written_ms, first, end, until)


def rewritten(written_ms: int, until: int, first: int = 0, end: int = 10) -> Deletes:
    return Deletes(Stage.REWRITTEN, written_ms, first, end, until)


def test_a_search_adds_groups_and_the_end_that_it_reached() -> None:
    first = with_found((), 0, 100, [marked(7, 3, 9)])
    assert first == (COUNTED, marked(7, 3, 9))
    second = with_found(first, 100, 200, [marked(8, 120, 130)])
    assert counted_end(second) == 200
    assert list(pending(second)) == [marked(7, 3, 9), marked(8, 120, 130)]


def test_a_search_replaces_the_groups_that_it_found_again() -> None:
    before = (COUNTED, marked(7, 3, 9), waiting(5, 50, 10, 20), removed(1, 4, 3, 9))
    after = with_found(before, 3, 100, [waiting(7, 60, 3, 9)])
    assert list(pending(after)) == [waiting(7, 60, 3, 9), removed(1, 4, 3, 9)]
    assert marked(7, 3, 9) in with_found(before, 4, 100, [])


def test_a_round_sets_horizons_below_its_end() -> None:
    before = (COUNTED, marked(7, 3, 9), marked(8, 20, 30), marked(9, 40, 50))
    assert after_round(before, 25, 1_000) == (
        COUNTED,
        marked(8, 25, 30),
        marked(9, 40, 50),
        waiting(7, 1_000, 3, 25),
    )


def test_a_horizon_that_a_broker_has_set_stays_if_it_is_later() -> None:
    far, near = marked(7, 3, 9)._replace(until=5_000), marked(8, 10, 12)._replace(until=500)
    assert after_round((far, near), 11, 1_000) == (
        near._replace(first_offset=11),
        waiting(8, 1_000, 10, 11),
        waiting(7, 5_000, 3, 9),
    )
    assert far.joined(near) == marked(7, 3, 12)._replace(until=5_000)
    assert far.joined(marked(8, 10, 12)).until == 5_000


def test_a_group_is_removed_once_each_retained_horizon_is_later() -> None:
    before = (waiting(7, 50), waiting(8, 60))
    assert settled(before, 0, 50) == before
    assert settled(before, 0, 51) == (waiting(8, 60), removed(7))
    assert settled(before, 0, None) == (removed(7),)


def test_a_group_below_the_log_start_is_removed() -> None:
    before = (COUNTED, marked(7, 3, 9), marked(8, 9, 12), waiting(5, 50, 0, 3))
    assert settled(before, 9, 50) == (COUNTED, marked(8, 9, 12), removed(5, first=0, end=9))


def test_a_removed_group_waits_for_its_files_and_then_for_old_snapshots() -> None:
    group = (removed(7),)
    seen = after_tidying(group, 11, Files(5, 12, 3))
    assert seen == (removed(7, 11),)
    assert after_tidying(seen, 13, Files(11, 14, 3)) == seen
    gone = after_tidying(seen, 13, Files(12, 14, 3))
    assert gone == (rewritten(7, 14),)
    assert after_tidying(gone, 15, Files(None, 16, 13)) == gone
    assert after_tidying(gone, 15, Files(None, 16, 14)) == ()


def test_a_group_without_deleted_rows_passes_both_steps_at_once() -> None:
    assert after_tidying((COUNTED, removed(7)), 11, Files(None, 12, 12)) == (COUNTED,)


def test_groups_that_wait_for_the_same_are_one() -> None:
    assert settled((waiting(9, 50, 0, 5), waiting(7, 40, 5, 9)), 0, None) == (
        removed(7, first=0, end=9),
    )


def test_many_groups_are_joined_by_age_and_stay_as_late() -> None:
    many = [marked(1_000 * n, 10 * n, 10 * n + 5) for n in range(MOST + 1)]
    many[9] = many[9]._replace(written_ms=many[8].written_ms + 1)
    after = with_found((), 0, 10_000, many)
    assert len(after) == MOST
    assert marked(8_000, 80, 95) in after
    assert min(group.written_ms for group in pending(after)) == 0


def test_an_unseen_group_stays_unseen_if_it_is_joined() -> None:
    assert removed(7).joined(removed(5, 11)) == removed(5)
