"""How pages say times, values and links."""

from ebbtide.orchestration.pages.app import query, relative, share, value_in_words, with_code

HOUR = 3_600_000
NOW_MS = 10**12
RELATIVE = {
    0: "now",
    -59_000: "now",
    -90_000: "2 min ago",
    -HOUR: "1 h ago",
    47 * HOUR: "in 2 d",
}
VALUES = {
    ("604800000", "kafka.retention.ms"): "7 d",
    ("5400000", "kafka.retention.ms"): "1.5 h",
    ("432000000", "history.expire.max-snapshot-age-ms"): "5 d",
    ("1073741824", "kafka.segment.bytes"): "1.1 GB",
    ("9223372036854775807", "kafka.max.compaction.lag.ms"): "",
    ("-1", "kafka.retention.ms"): "",
    ("not set", "kafka.retention.ms"): "",
    ("0.5", "kafka.min.cleanable.dirty.ratio"): "",
}


def test_times_are_told_from_now() -> None:
    assert {ms: relative(NOW_MS + ms, NOW_MS) for ms in RELATIVE} == RELATIVE
    assert relative(None, 5) == relative(-1, 5) == ""


def test_values_are_told_in_units() -> None:
    assert {value: value_in_words(*value) for value in VALUES} == VALUES
    assert (share(0.256), share(None)) == ("26 %", "-")


def test_text_in_backticks_is_code_and_all_is_escaped() -> None:
    assert with_code("`a<b` & c") == "<code>a&lt;b</code> &amp; c"


def test_a_query_has_what_is_given() -> None:
    assert query({"a": "x y", "b": None, "c": "", "d": 2, "e": 0, "f": False}) == "?a=x+y&d=2&e=0"
    assert query({}) == ""
