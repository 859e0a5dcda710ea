"""A key that was erased does not come back: records older than the erasure are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.columns.erased_keys import named_keys
from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.erasures import append_erasures
from ebbtide.ledger import erasure_secrets
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.ledger.own_tables import LOGGED, KeyRow
from ebbtide.settings.config import DESTROYED_SECRETS
from ebbtide.specs.erase_request import Erasure
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message

ALICE, BOB = "alice@example.org", "bob@example.org"
ERASED_MS = FIRST_MS + 100
OLD, NEW = 99, 100  # of a record, from FIRST_MS on
LOG = [
    [Message(ALICE, "one", OLD), Message(BOB, "1", OLD)],
    [Message(ALICE, "two", NEW), Message(ALICE, None, OLD), Message(None, "3", OLD)],
    [],
]
COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def erased(empty: Bench) -> Bench:
    """A topic without a log, of which a key was erased."""
    erasure = Erasure(run_id="r", now_ms=ERASED_MS, requested_by="ann", reason="asked")
    key = ALICE.encode()
    row = KeyRow.of(named_keys(secret_of(str(empty.name)), [key])[key], 0, 1)
    append_erasures(empty.spark, empty.name, erasure, LOGGED, [row])
    return empty


def rows_of(bench: Bench, table: str) -> list[tuple[object, ...]]:
    rows = bench.spark.table(table).select("offset", "key", "value", "tombstone_by")
    return [tuple(row) for row in rows.orderBy("offset").collect()]


@pytest.mark.parametrize("is_spark", [False, True], ids=["files", "rows"])
def test_an_older_record_enters_without_key_and_value(erased: Bench, is_spark: bool) -> None:
    if is_spark:  # an event time in a header passes through Spark
        erased.log([[]], COMPACT)
        erased.set({"ebbtide.event.time": "header:none"})
    erased.log(LOG, COMPACT, folder="again")
    bob, new, keyless = (1, BOB.encode(), b"1", None), (2, ALICE.encode(), b"two", None), 4
    assert rows_of(erased, erased.name.records_table) == [
        (0, None, None, "erased_key"),
        bob,
        new,
        (3, None, None, "erased_key"),
        (keyless, None, b"3", None),
    ]
    outcome = erased.mark()
    assert rows_of(erased, erased.name.records_table) == [bob, new, (keyless, None, b"3", None)]
    assert outcome.partitions[0]["refused"] == 2
    assert "2 records have a key that was erased" in outcome.topic["note"]
    quarantine = erased.spark.table(erased.name.quarantine_table)
    assert [
        (row["offset"], row["reason"], row["key"], row["value"])
        for row in quarantine.orderBy("offset").collect()
    ] == [(0, "erased_key", None, None), (3, "erased_key", None, None)]
    assert erased.mark().rows_removed == 0


def test_a_secret_that_is_missing_refuses_the_ingest(
    erased: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = secret_of(str(erased.name))
    monkeypatch.setenv(erasure_secrets.SECRETS, str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=rf"fingerprint {known.fingerprint}, found none"):
        erased.log(LOG, COMPACT)
    assert rows_of(erased, erased.name.records_table) == []
    erased.set({DESTROYED_SECRETS: known.fingerprint})
    erased.ingest(erased.home / "log", FIRST_MS)
    first, *_ = rows_of(erased, erased.name.records_table)
    assert first == (0, ALICE.encode(), b"one", None)


def test_another_topic_has_its_own_erased_keys(erased: Bench) -> None:
    other = Bench(erased.sandbox, erased.name._replace(topic="t2"), erased.home / "2")
    assert secret_of(str(other.name)) != secret_of(str(erased.name))
