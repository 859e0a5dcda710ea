"""Why a record of a key is still there, and when it will be gone."""

import hashlib
from typing import Any, NamedTuple

import pytest

from ebbtide.errors import RequestError
from ebbtide.lake.key_records import Fate, KeyRecord, SearchedKey
from ebbtide.lake.reader import LakeTopic, open_lake
from ebbtide.orchestration.pages.key import IN_A_WORD, explain, key_page
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import to_properties
from tests.lake_sandbox import LakeSandbox, as_ebbtide, state_of

COMPACT = {"kafka.cleanup.policy": "compact"}
NOW_MS = 1_767_312_000_000  # 2026-01-02
HORIZON = 1_767_400_000_000  # the day after
HASH = hashlib.sha256(b"a").hexdigest().upper()


def topic(config: dict[str, str], **state: Any) -> LakeTopic:
    """A partition with closed segments from 0 and 50, and an active one from 100."""
    segments = (SegmentStart(0, 0), SegmentStart(50, 0), SegmentStart(100, 0))
    made = state_of(**{"segments": segments, "log_end_offset": 150, **state})
    return LakeTopic("log.a", {**config, **to_properties(0, made)})


def record(offset: int, fate: Fate = Fate.CURRENT, **given: Any) -> KeyRecord:
    fields = {"timestamp_ms": None, "event_time_ms": None, "tombstone_by": None, "size_bytes": 1}
    fields |= {"partition": 0, "segment": 0, "is_tombstone": False, "delete_horizon_ms": None}
    return KeyRecord(offset=offset, fate=fate, **{**fields, **given})


def tombstone(offset: int, horizon_ms: int | None = None) -> KeyRecord:
    fate = Fate.UNSTAMPED if horizon_ms is None else Fate.TOMBSTONE
    given = {"is_tombstone": True, "tombstone_by": "null_value", "delete_horizon_ms": horizon_ms}
    return record(offset, fate, **given)


def superseded(offset: int) -> KeyRecord:
    return record(offset, Fate.SUPERSEDED)


class Case(NamedTuple):
    """Records of a key, and what is said of the first."""

    word: str
    reason: str
    records: list[KeyRecord]
    config: dict[str, str] = COMPACT
    state: dict[str, Any] = {}  # noqa: RUF012


PAIR = [superseded(3), record(60)]
REPLICATED = COMPACT | {"ebbtide.replicas": "copy.log"}
DIRTY, DIRTIER = {"first_dirty_offset": 100}, {"first_dirty_offset": 50}
LAG = COMPACT | {"kafka.min.compaction.lag.ms": "7200000"}
DELETE = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "1000"}
OPEN = "A transaction that started at or before this record is still open. "
HORIZON_TO_COME = (
    "Its delete horizon is due at 2026-01-03 00:26 UTC. The first cleaner round at or after that "
    "time removes the tombstone."
)
OTHERS = [record(55), record(60, Fate.ABORTED), record(70, Fate.UNDECIDED)]
CASES = [
    Case("current value", "Compaction retains the newest", [record(3)]),
    Case("current value", "nightly runs skip", [record(3)], COMPACT | {"ebbtide.enabled": "false"}),
    Case("superseded", "The next round starts at offset 50 and removes", PAIR, state=DIRTIER),
    Case("superseded", "younger than 2 h (min.compaction.lag.ms).", PAIR, LAG, DIRTIER),
    Case("superseded", "Offset 120 is in the active segment", [superseded(3), record(120)]),
    Case(
        "superseded",
        "A cleaner round has covered offset 60 and retained this record",
        PAIR,
        state=DIRTY,
    ),
    Case("superseded", "Offset 55 has a newer", [superseded(3), *OTHERS], state=DIRTIER),
    Case(
        "aborted",
        "No cleaner round has covered offset 60 yet",
        [*OTHERS[1:2], record(70)],
        state=DIRTIER,
    ),
    Case("undecided", OPEN, [record(60, Fate.UNDECIDED)]),
    Case("newest, not marked yet", "first decides whether", [record(60, Fate.UNMARKED)]),
    Case("tombstone", HORIZON_TO_COME, [tombstone(60, HORIZON)]),
    Case("tombstone", "The next cleaner round removes the tombstone", [tombstone(60, NOW_MS - 1)]),
    Case("tombstone", "plus delete.retention.ms (1 days)", [tombstone(60)], state=DIRTIER),
    Case("tombstone", "covers that segment until it is closed", [tombstone(120)]),
    Case("tombstone", "until every replica has it.", [tombstone(60, HORIZON)], REPLICATED),
    Case("retained", "with its segment, by retention.ms.", [record(3, Fate.NOT_COMPACTED)], DELETE),
    Case(
        "retained", "None of the topic's settings removes it", [record(3, Fate.NOT_COMPACTED)], {}
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.word}: {case.reason}")
def test_a_record_is_explained(case: Case) -> None:
    explained = explain(topic(case.config, **case.state), case.records, NOW_MS)[0]
    assert explained.word == case.word
    assert any(case.reason in text for text in explained.reasons), explained.reasons


def test_every_fate_has_a_word() -> None:
    assert IN_A_WORD.keys() == set(Fate)


@pytest.mark.parametrize(
    ("text", "encoding", "message"),
    [
        ("abc", "sha-256", "as 64 hexadecimal digits"),
        ("xyz", "hex", "a key in hex in line 1"),
        ("", "utf-8", "expected a key, found an empty text"),
        ("a", "rot13", "expected one of the encodings utf-8, hex"),
    ],
)
def test_what_is_no_key_is_refused_without_repeating_it(
    text: str, encoding: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        SearchedKey.parse(text, encoding)
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


@pytest.mark.parametrize(("text", "encoding"), [("a", "utf-8"), ("61", "hex"), (HASH, "sha-256")])
def test_a_key_is_found_in_the_tables(with_keys: LakeSandbox, text: str, encoding: str) -> None:
    with open_lake() as opened:
        page = key_page(opened, "log.a", text, encoding, NOW_MS)
    rows = [
        (explained.record.offset, explained.record.fate, explained.record.delete_horizon_ms)
        for explained in page["records"]
    ]
    assert rows == [(3, Fate.SUPERSEDED, None), (5, Fate.TOMBSTONE, HORIZON)]
    assert page["sha256"] == HASH.lower()
    assert page["erasures"] == []


def test_a_key_that_is_not_there(with_keys: LakeSandbox) -> None:
    for text, encoding in (("zz", "utf-8"), ("0" * 64, "sha-256")):
        with open_lake() as opened:
            assert key_page(opened, "log.a", text, encoding, NOW_MS)["records"] == []


def test_a_topic_that_is_too_large_names_the_way_out(
    with_keys: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.lake.key_records.MAX_RECORDS", 2)
    with (
        open_lake() as opened,
        pytest.raises(RequestError, match=r"found 3 in log\.a\. Use the Spark"),
    ):
        key_page(opened, "log.a", "a", "utf-8", NOW_MS)
