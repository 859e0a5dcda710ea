"""Keys as they are written down, and which way their tombstones take."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.settings.config import parse_config
from ebbtide.specs.erase_request import (
    Encoding,
    Erasure,
    Way,
    check_is_compacted,
    decode_keys,
    produced_headers,
    sliced,
    way_of,
)


@pytest.mark.parametrize(
    ("lines", "encoding", "keys"),
    [
        pytest.param(["a", "ü", " b "], "utf-8", [b"a", "ü".encode(), b" b "], id="text as it is"),
        pytest.param(["00ff", "AB", "00FF"], "hex", [b"\x00\xff", b"\xab"], id="hex, each once"),
        pytest.param(["AP8=", "", "YQ=="], "base64", [b"\x00\xff", b"a"], id="no key in no text"),
        pytest.param([], "utf-8", [], id="none"),
    ],
)
def test_keys_are_read(lines: list[str], encoding: str, keys: list[bytes]) -> None:
    assert decode_keys(lines, Encoding(encoding)) == tuple(keys)


@pytest.mark.parametrize(
    ("line", "encoding"), [("zz", "hex"), ("abc", "hex"), ("YQ=", "base64"), ("Y*==", "base64")]
)
def test_a_line_that_is_no_key_is_named_by_its_number_alone(line: str, encoding: str) -> None:
    message = (
        f"expected a key in {encoding} in line 2, found text that is not {encoding}. Correct the "
        "line, or choose another encoding"
    )
    with pytest.raises(RequestError, match=f"^{message}$"):
        decode_keys(["00FF", line], Encoding(encoding))


def erasure(**fields: Any) -> Erasure:
    return Erasure(run_id="r", now_ms=0, requested_by="me", reason="why", **fields)


KAFKA = {"ebbtide.source": "kafka:main"}
SEGMENTS = {"ebbtide.source": "segments:/logs"}


@pytest.mark.parametrize(
    ("properties", "asked", "expected"),
    [
        pytest.param(KAFKA, {}, (Way.PRODUCED, "main"), id="to its own writer"),
        pytest.param(KAFKA, {"connection": "rw"}, (Way.PRODUCED, "rw"), id="by a user who may"),
        pytest.param(
            SEGMENTS | {"ebbtide.replicas": "kafka:live,other.log"},
            {},
            (Way.PRODUCED, "live"),
            id="to the live replica",
        ),
        pytest.param(SEGMENTS, {"connection": "c"}, (Way.PRODUCED, "c"), id="where one says"),
        pytest.param({}, {"appends": True}, (Way.APPENDED, None), id="to a closed archive"),
        pytest.param({}, {"connection": "c"}, (Way.PRODUCED, "c"), id="a source not known yet"),
    ],
)
def test_the_way_of_a_tombstone(
    properties: dict[str, str], asked: dict[str, Any], expected: tuple[Way, str | None]
) -> None:
    assert way_of("log.t", parse_config(properties), erasure(**asked)) == expected


@pytest.mark.parametrize(
    ("properties", "asked", "message"),
    [
        pytest.param(
            KAFKA,
            {"appends": True},
            "expected a topic without a source for `append`, found that kafka:main writes log.t. "
            "Leave `append` off; or, if nothing writes log.t any more, unset ebbtide.source and "
            "ebbtide.replicas with configure_topic",
            id="appended beside its writer",
        ),
        pytest.param(
            {},
            {},
            "expected a Kafka connection to the live topic of log.t, found none in the request, in "
            "ebbtide.source (not set) or in ebbtide.replicas. Name one with `connection`; or, if "
            "nothing writes the topic any more, set `append`",
            id="no way named",
        ),
        pytest.param(
            KAFKA | {"ebbtide.tombstone.explicit": "true"},
            {},
            "expected a header that makes a produced record of log.t a tombstone, found none: "
            "ebbtide.tombstone.explicit is set, and producers cannot set the flag. Set "
            "ebbtide.tombstone.header with configure_topic",
            id="a null value that would be none",
        ),
        pytest.param(
            SEGMENTS | {"ebbtide.replicas": "kafka:a,kafka:b"},
            {},
            "expected a Kafka connection to the live topic of log.t, found none in the request, in "
            "ebbtide.source (segments:/logs) or in ebbtide.replicas. Name one with `connection`; "
            "or, if nothing writes the topic any more, set `append`",
            id="two live replicas",
        ),
    ],
)
def test_no_way(properties: dict[str, str], asked: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, RequestError), match=f"^{re.escape(message)}$"):
        way_of("log.t", parse_config(properties), erasure(**asked))


@pytest.mark.parametrize(
    ("header", "added"), [("gone=yes", [("gone", b"yes")]), ("gone", [("gone", b"")]), (None, [])]
)
def test_a_produced_tombstone_has_the_header_that_makes_it_one(
    header: str | None, added: list[tuple[str, bytes]]
) -> None:
    properties = KAFKA | ({"ebbtide.tombstone.header": header} if header else {})
    config = parse_config(properties | {"ebbtide.tombstone.explicit": "true"} if header else {})
    assert produced_headers(config, erasure()) == (*erasure().headers, *added)


@pytest.mark.parametrize("policy", ["delete", "", None])
def test_only_a_compacted_topic_loses_what_a_tombstone_names(policy: str | None) -> None:
    properties = {} if policy is None else {"kafka.cleanup.policy": policy}
    actual = policy or "none"
    with pytest.raises(
        ConfigurationError,
        match=f"compact in kafka.cleanup.policy of log.t, found {actual}: a tombstone would delete",
    ):
        check_is_compacted("log.t", parse_config(properties))
    check_is_compacted("log.t", parse_config({"kafka.cleanup.policy": "compact,delete"}))


@pytest.mark.parametrize(
    ("sizes", "ranges"),
    [
        ([], []),
        ([4], [(0, 1)]),
        ([11, 1], [(0, 1), (1, 2)]),
        ([5, 5, 1, 9, 2], [(0, 2), (2, 4), (4, 5)]),
    ],
)
def test_batches_hold_so_many_bytes_at_most(
    sizes: list[int], ranges: list[tuple[int, int]]
) -> None:
    assert sliced(sizes, 10) == ranges
