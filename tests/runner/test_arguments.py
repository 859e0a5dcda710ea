"""Numbers on the command lines of jobs: what is none is refused by name before Spark starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from jobs import erase_keys, export_segments, hold_records

RUN = ("--topic", "log.t", "--now", "2026-01-01T00:00:00Z", "--run-id", "r")
ERASE = ("--requested-by", "ann", "--reason", "asked")


@pytest.mark.parametrize(
    ("main", "arguments", "found"),
    [
        (erase_keys.main, (*ERASE, "--timeout-ms", "-1"), "from 0 to 2147483647, found '-1'"),
        (erase_keys.main, (*ERASE, "--timeout-ms", "1_000"), "found '1_000'"),
        (hold_records.main, ("--action", "make", "--partition", "-1"), "found '-1'"),
        (hold_records.main, ("--action", "make", "--partition", "2147483648"), "to 2147483647"),
        (hold_records.main, ("--action", "make", "--first-offset", "-5"), "found '-5'"),
        (hold_records.main, ("--action", "make", "--end-offset", "٣"), "found '٣'"),
        (export_segments.main, ("--target", "/tmp/none", "--partition", "-2"), "found '-2'"),
    ],
)
def test_what_is_no_number_of_its_range_is_refused(
    main: Callable[[Sequence[str]], int],
    arguments: tuple[str, ...],
    found: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*RUN, *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {arguments[-2]}: expected a whole number from 0" in said
    assert found in said
