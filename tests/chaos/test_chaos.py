"""A few nights in which much goes wrong."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.chaos.__main__ import sum_up
from tests.chaos.company import BESIDE_IT, COMPANY, INGEST, THAT_FAILED
from tests.chaos.disturbance import TOOLS
from tests.chaos.schedules import KILL_9
from tests.fresh_seed import seeds

pytestmark = pytest.mark.long

# Of logs of two nights; one with real kills and one that strangers visit are among them.
SCHEDULES = range(5, 11)


@pytest.mark.parametrize("seed", seeds(__file__, 1))
def test_disturbed_nights_end_as_undisturbed_ones(seed: int) -> None:
    schedules = map(str, SCHEDULES)
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(seed), "--only", *schedules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["schedule"] for one in told] == list(SCHEDULES)
    assert {one["schedule"]: one["problems"] for one in told if one["problems"]} == {}
    assert sum(one["happened"].get("kill", 0) for one in told) > 0


CAME = f"{COMPANY}{INGEST}"


def schedules(
    count: int = 200, killed: int = 20, in_company: int = 100, came: str = CAME, **changed: int
) -> list[dict[str, Any]]:
    """Schedules that went well; the first so many had a tool, a kill -9 or company."""
    counts = {tool: changed.get(tool, 50) for tool in TOOLS}
    return [
        {
            "schedule": number,
            "seconds": 90,
            "happened": {
                **({KILL_9: 1} if number < killed else {}),
                **({came: 1} if number < in_company else {}),
            },
            "changed": {tool: 2 if number < end else 0 for tool, end in counts.items()},
            "problems": [],
        }
        for number in range(count)
    ]


def test_a_whole_run_that_met_enough_passes_and_says_how_long_it_took(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sum_up(schedules()) == 0
    out = capsys.readouterr().out
    assert "200 schedules in 5.0 hours, side by side: 0 went wrong" in out
    assert "schedules in which another process worked at a commit point: 100" in out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(
            pytest.param({tool: 49}, f"expected {tool} to change 50 schedules, found 49", id=tool)
            for tool in TOOLS
        ),
        pytest.param({"killed": 19}, "expected 20 jobs to die of kill -9, found 19", id=KILL_9),
    ],
)
def test_a_whole_run_that_met_too_little_fails(
    capsys: pytest.CaptureFixture[str], changed: dict[str, int], message: str
) -> None:
    assert sum_up(schedules(**changed)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == message


def test_a_part_of_a_run_fails_by_its_schedules_alone() -> None:
    part = schedules(199, killed=0)
    assert sum_up(part) == 0
    part[3]["problems"] = ["a record is missing"]
    assert sum_up(part) == 1


@pytest.mark.parametrize(
    ("in_company", "came", "found"),
    [
        pytest.param(50, CAME, None, id="half"),
        pytest.param(49, CAME, 49, id="less than half"),
        pytest.param(100, CAME + BESIDE_IT, 0, id="beside jobs alone"),
        pytest.param(100, CAME + THAT_FAILED, 0, id="all failed"),
        pytest.param(100, CAME + BESIDE_IT + THAT_FAILED, 0, id="all failed beside jobs"),
    ],
)
def test_a_run_needs_company_at_a_commit_point_in_half_of_its_schedules(
    capsys: pytest.CaptureFixture[str], in_company: int, came: str, found: int | None
) -> None:
    assert sum_up(schedules(100, in_company=in_company, came=came)) == (found is not None)
    message = "expected another process to work at a commit point in 50 schedules, found "
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{message}{found}" if found is not None else message not in last


def test_a_run_of_a_few_schedules_needs_no_company() -> None:
    assert sum_up(schedules(49, in_company=0)) == 0
    assert sum_up(schedules(50, in_company=0)) == 1
