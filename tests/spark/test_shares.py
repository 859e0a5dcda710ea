"""Work on shares of what many units hold, on the driver and in tasks alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebbtide.errors import UnavailableError
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING, map_shares
from tests.lake_sandbox import LakeSandbox

SHARES, ROWS = 5, 30


@pytest.fixture(params=["on the driver", "in tasks"], autouse=True)
def somewhere(request: pytest.FixtureRequest, sandbox: LakeSandbox) -> Iterator[None]:
    conf = sandbox.session.conf
    conf.set(DRIVER_ROWS_SETTING, 0 if request.param == "in tasks" else ROWS + 1)
    yield
    conf.unset(DRIVER_ROWS_SETTING)


def _by_last_digit(number: int) -> Iterator[tuple[int, int]]:
    yield number % 4, number
    yield number % 4, -number


def _refused(number: int) -> Iterator[tuple[int, int]]:
    if number == 7:
        raise UnavailableError(f"expected unit {number}, found none")
    yield number % 4, number


def _refused_share(pieces: list[int]) -> list[int]:
    if 7 in pieces:
        raise UnavailableError("expected a share without 7, found one")
    return pieces


@pytest.mark.long(but="in tasks")
def test_each_share_is_worked_on_with_all_its_pieces(sandbox: LakeSandbox) -> None:
    done = map_shares(sandbox.session, _by_last_digit, sorted, range(ROWS), SHARES, ROWS)
    expected = [
        sorted(sign * number for number in range(share, ROWS, 4) for sign in (1, -1))
        for share in range(4)  # the fifth has none
    ]
    assert sorted(done) == sorted(expected)


@pytest.mark.long
def test_an_error_of_ours_arrives_as_it_was_raised(sandbox: LakeSandbox) -> None:
    with pytest.raises(UnavailableError, match=r"^expected unit 7, found none$"):
        map_shares(sandbox.session, _refused, sorted, range(ROWS), SHARES, ROWS)
    with pytest.raises(UnavailableError, match=r"^expected a share without 7, found one$"):
        map_shares(sandbox.session, _by_last_digit, _refused_share, range(ROWS), SHARES, ROWS)
