"""`ebbtide key`: each record of a key with what becomes of it, and never the key itself."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode
from ebbtide.records.attributes import TRANSACTIONAL
from tests.commands.conftest import Ebbtide
from tests.commands.test_commands import check
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import data_batch, marker
from tests.tables.nights import HOUR_MS, clean, ingest, mark, set_properties
from tests.tables.partition_log import T0, write_segments

KEY = "personal@example.com"
TOPIC = "log.t"


def written(offset: int, value: str | None, producer: int | None = None) -> bytes:
    """A batch of one record of the key."""
    if producer is None:
        return data_batch(offset, (KEY, value), at_ms=T0)
    return data_batch(
        offset,
        (KEY, value),
        at_ms=T0,
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
    )


def fates(ebbtide: Ebbtide, *options: str) -> list[tuple[int, str]]:
    """The offsets of the key's records, each with its fate."""
    document = ebbtide("key", "--json", TOPIC, KEY, *options).document
    return [(record["offset"], record["fate"]) for record in document["records"]]


@pytest.fixture
def bring_in(lake: LakeSandbox, tmp_path: Path) -> Any:
    """Ingests segments of partition 0 into a compacted topic."""

    def ingested(segments: dict[int, list[bytes]]) -> LakeSandbox:
        write_segments(tmp_path / "log", segments)
        ingest(lake.session, TOPIC, tmp_path / "log", T0 + HOUR_MS)
        settings = {"kafka.cleanup.policy": "compact", "kafka.min.cleanable.dirty.ratio": "0"}
        set_properties(lake.session, TOPIC, settings)
        return lake

    return ingested


def test_a_time_that_no_date_has_is_shown(bring_in: Any, ebbtide: Ebbtide) -> None:
    """As of a producer that stamps in microseconds."""
    bring_in({0: [data_batch(0, (KEY, "1"), at_ms=T0 * 1000)], 1: []})
    shown = ebbtide("key", TOPIC, KEY)
    assert shown.code == ExitCode.DONE
    assert "after 9999" in shown.out
    (record,) = ebbtide("key", "--json", TOPIC, KEY).document["records"]
    last = "9999-12-31T23:59:59.999+00:00"
    assert (record["timestamp"], record["event_time"]) == (last, last)


def test_each_record_of_a_key_says_why_it_is_there(bring_in: Any, ebbtide: Ebbtide) -> None:
    lake = bring_in(
        {
            0: [
                written(0, "1"),
                written(1, "2", producer=1),
                marker(2, "ABORT", producer=1, at_ms=T0),
                written(3, "3", producer=2),
                marker(4, "COMMIT", producer=2, at_ms=T0),
            ],
            5: [written(5, "4"), written(6, "5"), written(7, "6", producer=3)],
        }
    )
    assert fates(ebbtide)[-2] == (6, "UNMARKED")
    mark(lake.session, TOPIC)
    assert fates(ebbtide) == [
        (0, "SUPERSEDED"),
        (1, "ABORTED"),
        (3, "SUPERSEDED"),
        (5, "ACTIVE"),
        (6, "CURRENT"),
        (7, "UNDECIDED"),
    ]
    records = check(ebbtide("key", "--json", TOPIC, KEY).document, "key", "records")
    assert records[0]["size_bytes"] > 0
    set_properties(lake.session, TOPIC, {"kafka.cleanup.policy": "delete"})
    assert {fate for _, fate in fates(ebbtide)} == {"NOT_COMPACTED"}
    assert fates(ebbtide, "--partition", "1") == []


def test_a_tombstone_has_its_horizon_from_its_round_on(bring_in: Any, ebbtide: Ebbtide) -> None:
    lake = bring_in({0: [written(0, "1"), written(1, None)], 2: []})
    mark(lake.session, TOPIC)
    assert fates(ebbtide) == [(0, "SUPERSEDED"), (1, "UNSTAMPED")]
    clean(lake.session, TOPIC, T0 + 2 * HOUR_MS)
    (tombstone,) = ebbtide("key", "--json", TOPIC, KEY).document["records"]
    assert (tombstone["offset"], tombstone["fate"]) == (1, "TOMBSTONE")
    assert tombstone["tombstone_by"] == "null_value"
    assert tombstone["delete_horizon"] is not None
    assert tombstone["delete_horizon"][:16].replace("T", " ") in ebbtide("key", TOPIC, KEY).out


def test_the_key_is_never_printed(bring_in: Any, ebbtide: Ebbtide) -> None:
    bring_in({0: [written(0, "1")], 1: []})
    digest = sha256(KEY.encode()).hexdigest()
    for options in ((), ("--json",)):
        answer = ebbtide("key", *options, TOPIC, KEY)
        assert KEY not in answer.out + answer.err
        assert digest in answer.out
    as_hex = ebbtide("key", TOPIC, KEY.encode().hex(), "--encoding", "hex")
    assert digest in as_hex.out
    missing = ebbtide("key", TOPIC, "other")
    assert missing.out.endswith(": the tables have no record of it\n")


def test_a_key_is_found_by_its_hash(bring_in: Any, ebbtide: Ebbtide) -> None:
    bring_in({0: [written(0, "1"), written(1, "2")], 2: []})
    digest = sha256(KEY.encode()).hexdigest()
    found = ebbtide("key", "--json", TOPIC, digest.upper(), "--encoding", "sha-256").document
    assert found == ebbtide("key", "--json", TOPIC, KEY).document
    assert len(found["records"]) == 2
    other = ebbtide("key", TOPIC, "0" * 64, "--encoding", "sha-256")
    assert "the tables have no record of it" in other.out
    wrong = ebbtide("key", TOPIC, KEY, "--encoding", "sha-256")
    assert wrong.code == ExitCode.FAILED
    assert "expected the SHA-256 of a key as 64 hexadecimal digits" in wrong.err
    assert KEY not in wrong.err
