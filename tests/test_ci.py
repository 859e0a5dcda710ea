"""When a landing stops one of its parts."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

PART = Path(__file__).resolve().parent.parent / ".ci" / "part.py"
SHARE_S = 60.0


def part() -> Any:
    spec = spec_from_file_location("part", PART)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def looks(*seconds: float, every_s: float = 60.0) -> list[Any]:
    """The CPU seconds used when the part was looked at, once a minute."""
    look = part().Look
    return [look(i * every_s, cpu_s) for i, cpu_s in enumerate(seconds)]


def test_a_part_that_works_goes_on_however_long_it_takes() -> None:
    assert part().why_stop(looks(*range(120)), SHARE_S) == ""


def test_a_part_that_costs_too_much_is_stopped() -> None:
    assert part().why_stop(looks(0, 100, 180), SHARE_S) == ""
    assert "its share is 1 minutes on 2 idle cores" in part().why_stop(looks(0, 100, 181), SHARE_S)


def test_a_part_that_only_waits_hangs() -> None:
    assert part().why_stop(looks(*[50] * 15), SHARE_S) == ""
    assert part().why_stop(looks(*[50] * 16), SHARE_S).startswith("it hangs: it has used 0 seconds")


def test_seconds_that_a_process_takes_with_it_are_no_hang() -> None:
    assert part().why_stop(looks(0, *range(140, 160), *range(20, 40)), SHARE_S) == ""
