"""What somebody types into a form is taken as meant, or refused in words."""

import pytest

from ebbtide.errors import RequestError
from ebbtide.specs.by_hand import CONFIGURE_TOPIC
from ebbtide.specs.filled import Filled, offsets
from ebbtide.specs.sources import EXPORT_SEGMENTS

DIGITS = "7" * 5_000


def filled(name: str, text: str) -> Filled:
    return Filled.of([(name, text)])


@pytest.mark.parametrize("text", ["--5", "1_000", "٣", "5.0", "abc"])
def test_only_ascii_digits_are_a_number(text: str) -> None:
    with pytest.raises(RequestError, match=r"^expected a whole number for timeout_ms, "):
        filled("timeout_ms", text).number("timeout_ms")


@pytest.mark.parametrize("text", [DIGITS, f"-{DIGITS}", "9223372036854775808"])
def test_a_number_of_more_than_64_bits_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"^expected a number of at most 64 bits for timeout_ms"):
        filled("timeout_ms", text).number("timeout_ms")


@pytest.mark.parametrize(
    ("text", "number"), [(" 7 ", 7), ("-1", -1), ("9223372036854775807", 2**63 - 1), ("", None)]
)
def test_a_number_is_taken(text: str, number: int | None) -> None:
    assert filled("timeout_ms", text).number("timeout_ms") == number


@pytest.mark.parametrize("line", ["0: --5", f"0: {DIGITS}", "x: 5", "٣: 5", "0: ٣", "-1: 5", "5"])
def test_a_line_that_is_no_offset_is_refused(line: str) -> None:
    with pytest.raises(RequestError, match=r"^expected "):
        offsets(filled("more_offsets", line))


def test_offsets_of_lines_and_of_fields_are_taken() -> None:
    given = Filled.of([("offset.0", "5"), ("more_offsets", "1: -1\n 2 :7")])
    assert offsets(given) == {"0": 5, "1": -1, "2": 7}


@pytest.mark.parametrize("text", ["abc", "🙂", "2026-13-01T00:00", "2026-11-24T25:00", "170000000"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"^expected a time for now, "):
        filled("now", text).time("now")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-24T10:00", "2026-11-24T10:00:00Z"),
        ("2026-11-24T10:00:07", "2026-11-24T10:00:07Z"),
        ("2026-11-24T10:00:00Z", "2026-11-24T10:00:00Z"),
        ("2026-11-24T10:00:00+02:00", "2026-11-24T10:00:00+02:00"),
        ("", None),
    ],
)
def test_a_time_is_taken(text: str, time: str | None) -> None:
    assert filled("now", text).time("now") == time


@pytest.mark.parametrize("text", ["x", "٣", "-1"])
def test_an_export_drops_no_partition_that_was_asked_for(text: str) -> None:
    with pytest.raises(RequestError, match=r"^expected a (partition|whole number for a partition)"):
        EXPORT_SEGMENTS.read(filled("partitions", text))


def test_unequal_lists_of_new_settings_are_refused() -> None:
    given = Filled.of([("topic", "log.a"), ("new_name", "kafka.retention.ms")])
    with pytest.raises(RequestError, match=r"found 0 and 1$"):
        CONFIGURE_TOPIC.read(given)
