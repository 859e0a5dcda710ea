"""Why a record of a key is still there, and when it will be gone."""

import hashlib
from typing import Any

import pytest

from ebbtide.errors import RequestError
from ebbtide.lake.key_records import Fate, KeyRecord
from ebbtide.lake.reader import LakeTopic, open_lake
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.state.topic_state import to_properties
from ebbtide.orchestration.pages.views.key import IN_A_WORD, Searched, explain, find_key
from tests.lake_sandbox import LakeSandbox, as_ebbtide, state_of

COMPACT = {"kafka.cleanup.policy": "compact"}
NOW_MS = 1_767_312_000_000  # 2026-01-02
HORIZON = 1_767_400_000_000  # the day after


def topic(config: dict[str, str], **state: Any) -> LakeTopic:
    """A partition with closed segments from 0 and 50, and an active one from 100."""
    segments = (SegmentStart(0, 0), SegmentStart(50, 0), SegmentStart(100, 0))
    made = state_of(**{"segments": segments, "log_end_offset": 150, **state})
    return LakeTopic("log.a", {**config, **to_properties(0, made)})


def record(offset: int, fate: Fate = Fate.CURRENT, **given: Any) -> KeyRecord:
    fields = {"timestamp": None, "event_time": None, "tombstone_by": None, "size_bytes": 1}
    fields |= {"partition": 0, "segment": 0, "is_tombstone": False, "delete_horizon_ms": None}
    return KeyRecord(offset=offset, fate=fate, **{**fields, **given})


def tombstone(offset: int, horizon_ms: int | None = None) -> KeyRecord:
    fate = Fate.UNSTAMPED if horizon_ms is None else Fate.TOMBSTONE
    given = {"is_tombstone": True, "tombstone_by": "null_value", "delete_horizon_ms": horizon_ms}
    return record(offset, fate, **given)


def superseded(offset: int) -> KeyRecord:
    return record(offset, Fate.SUPERSEDED)


@pytest.mark.parametrize(
    ("config", "state", "records", "word", "reason"),
    [
        pytest.param(
            COMPACT, {}, [record(3)], "current value", "Compaction keeps the newest", id="current"
        ),
        pytest.param(
            COMPACT,
            {"first_dirty_offset": 50},
            [superseded(3), record(60)],
            "superseded",
            "the next one begins at 50 and removes this record",
            id="superseded by a dirty record",
        ),
        pytest.param(
            COMPACT | {"kafka.min.compaction.lag.ms": "7200000"},
            {"first_dirty_offset": 50},
            [superseded(3), record(60)],
            "superseded",
            "leaves out records younger than 2 h (min.compaction.lag.ms).",
            id="superseded and protected by its age",
        ),
        pytest.param(
            COMPACT,
            {},
            [superseded(3), record(120)],
            "superseded",
            "Offset 120 lies in the active segment",
            id="superseded by one in the active segment",
        ),
        pytest.param(
            COMPACT,
            {"first_dirty_offset": 100},
            [superseded(3), record(60)],
            "superseded",
            "A round has covered offset 60 and left this record",
            id="superseded and left by a round",
        ),
        pytest.param(
            COMPACT,
            {"first_dirty_offset": 50},
            [superseded(3), record(55), record(60, Fate.ABORTED), record(70, Fate.UNDECIDED)],
            "superseded",
            "Offset 55 has a newer record of the key.",
            id="superseded by the newest that readers get",
        ),
        pytest.param(
            COMPACT,
            {"first_dirty_offset": 50},
            [record(60, Fate.ABORTED), record(70)],
            "aborted",
            "No round has covered offset 60 yet",
            id="of an aborted transaction",
        ),
        pytest.param(
            COMPACT,
            {},
            [record(60, Fate.UNDECIDED)],
            "undecided",
            "A transaction before it is still open",
            id="behind an open transaction",
        ),
        pytest.param(
            COMPACT,
            {},
            [record(60, Fate.UNMARKED)],
            "newest, not judged yet",
            "first finds out whether it is a tombstone",
            id="not marked yet",
        ),
        pytest.param(
            COMPACT,
            {},
            [tombstone(60, HORIZON)],
            "tombstone",
            "The first round at or after 2026-01-03 00:26 UTC, its delete horizon, removes it.",
            id="a tombstone with a horizon to come",
        ),
        pytest.param(
            COMPACT,
            {},
            [tombstone(60, NOW_MS - 1)],
            "tombstone",
            "the next round removes it",
            id="a tombstone past its horizon",
        ),
        pytest.param(
            COMPACT,
            {"first_dirty_offset": 50},
            [tombstone(60)],
            "tombstone",
            "its own time plus delete.retention.ms (1 days)",
            id="a tombstone without a horizon",
        ),
        pytest.param(
            COMPACT,
            {},
            [tombstone(120)],
            "tombstone",
            "until it is closed",
            id="a tombstone in the active segment",
        ),
        pytest.param(
            COMPACT | {"ebbtide.replicas": "copy.log"},
            {},
            [tombstone(60, HORIZON)],
            "tombstone",
            "It stays until each replica holds it.",
            id="a tombstone with replicas",
        ),
        pytest.param(
            {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "1000"},
            {},
            [record(3, Fate.NOT_COMPACTED)],
            "kept",
            "It goes with its segment when retention.ms says so.",
            id="not compacted",
        ),
        pytest.param(
            {}, {}, [record(3, Fate.NOT_COMPACTED)], "kept", "No rule is set", id="no rule"
        ),
        pytest.param(
            COMPACT | {"ebbtide.enabled": "false"},
            {},
            [record(3)],
            "current value",
            "no night works on this topic",
            id="not enabled",
        ),
    ],
)
def test_a_record_is_explained(
    config: dict[str, str],
    state: dict[str, Any],
    records: list[KeyRecord],
    word: str,
    reason: str,
) -> None:
    explained = explain(topic(config, **state), records, NOW_MS)[0]
    assert explained.word == word
    assert any(reason in text for text in explained.reasons), explained.reasons


def test_every_fate_has_a_word() -> None:
    assert IN_A_WORD.keys() == set(Fate)


@pytest.mark.parametrize(
    ("text", "encoding", "message"),
    [
        pytest.param("abc", "sha-256", "as 64 hexadecimal digits", id="a hash that is none"),
        pytest.param("xyz", "hex", "a key in hex in line 1", id="hex that is none"),
        pytest.param("", "utf-8", "expected a key, found an empty field", id="nothing"),
        pytest.param("a", "rot13", "expected an encoding of utf-8, hex", id="an unknown encoding"),
    ],
)
def test_what_is_no_key_is_refused_without_repeating_it(
    text: str, encoding: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        _ = Searched(topic="log.a", text=text, encoding=encoding).sha256
    assert "xyz" not in str(refused.value)


@pytest.fixture
def with_keys(lake: LakeSandbox) -> LakeSandbox:
    """A topic whose key `a` has a record and a tombstone with a horizon, and another key."""
    lake.topic("log.a", {0: state_of(), 1: state_of()})
    with as_ebbtide(lake.session):
        lake.session.sql(
            "INSERT INTO lake.log.a (`partition`, offset, segment, batch, key, is_tombstone) "
            "VALUES (0, 3, 0, 3, X'61', false), (0, 5, 0, 5, X'61', true), "
            "(1, 4, 0, 4, X'62', false)"
        )
    lake.batches("log.a", [(0, 3, 0, 1), (0, 5, 64, HORIZON), (1, 4, 64, 1)])
    return lake


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        pytest.param("a", "utf-8", id="typed"),
        pytest.param("61", "hex", id="in hex"),
        pytest.param(hashlib.sha256(b"a").hexdigest().upper(), "sha-256", id="by its hash"),
    ],
)
def test_a_key_is_found_in_the_tables(with_keys: LakeSandbox, text: str, encoding: str) -> None:
    searched = Searched(topic="log.a", text=text, encoding=encoding)
    with open_lake() as opened:
        page = find_key(opened, searched, NOW_MS)
    rows = [(of.record.offset, of.record.fate, of.record.delete_horizon_ms) for of in page.records]
    assert rows == [(3, Fate.SUPERSEDED, None), (5, Fate.TOMBSTONE, HORIZON)]
    assert page.sha256 == hashlib.sha256(b"a").hexdigest()
    assert page.erasures == []


def test_a_key_that_is_not_there(with_keys: LakeSandbox) -> None:
    for text, encoding in (("zz", "utf-8"), ("0" * 64, "sha-256")):
        with open_lake() as opened:
            searched = Searched(topic="log.a", text=text, encoding=encoding)
            assert find_key(opened, searched, NOW_MS).records == []


def test_a_topic_that_is_too_large_names_the_way_out(
    with_keys: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.lake.key_rows.MAX_RECORDS", 2)
    searched = Searched(topic="log.a", text="a", encoding="utf-8")
    with open_lake() as opened, pytest.raises(RequestError, match=r"found 3 in log\.a; ask Spark"):
        find_key(opened, searched, NOW_MS)
