"""A key that was erased does not come back: records older than the erasure are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa
import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg import erasures, segment_planning
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.data_files import whole_file
from ebbtide.iceberg.erasures import ROWS_OF_ERASED_KEYS, erased_keys, secret_for
from ebbtide.iceberg.metadata import TableColumn
from ebbtide.iceberg.topics import Topic, set_properties
from ebbtide.ledger import erasure_secrets
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.ledger.own_tables import ERASURES
from ebbtide.runner.holds import Covered, count_covered
from ebbtide.settings.config import DESTROYED_SECRETS
from ebbtide.stores.store import Store
from tests.jobs.erase_keys.erased import note_erased, refused_records
from tests.jobs.export_segments.exports import export
from tests.jobs.hold_records.builders import kept, make_hold
from tests.tables.bench import Bench
from tests.tables.fixtures import Meanwhile
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.other_tools import rewrite_files

ALICE, BOB = "alice@example.org", "bob@example.org"
ERASED_MS = FIRST_MS + 100
OLD, NEW = 99, 100  # of a record, from FIRST_MS on
LOG = [
    [Message(ALICE, "one", OLD), Message(BOB, "1", OLD)],
    [Message(ALICE, "two", NEW), Message(ALICE, None, OLD), Message(None, "3", OLD)],
    [],
]
COMPACT = {"cleanup.policy": "compact"}
METRICS = "write.metadata.metrics.default"  # of bounds and counts in manifests


@pytest.fixture
def erased(empty: Bench) -> Bench:
    """A topic without a log, of which a key was erased."""
    note_erased(empty.spark, empty.name, ALICE, ERASED_MS)
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
    assert refused_records(erased.spark, erased.name) == [
        (0, "erased_key", None, None),
        (3, "erased_key", None, None),
    ]
    assert erased.mark().rows_removed == 0


def test_a_timestamp_in_another_unit_is_compared_in_this_unit(empty: Bench) -> None:
    """Nanoseconds stand in a header of the row."""
    erased_ms = 1_790_000_000_000
    note_erased(empty.spark, empty.name, ALICE, erased_ms)

    def message(value: str, of_ms: Callable[[int], int], after_ms: int) -> Message:
        return Message(ALICE, value, of_ms(erased_ms + after_ms) - FIRST_MS)

    units = (lambda ms: ms // 1000, lambda ms: ms * 1000, lambda ms: ms * 1_000_000)
    old = [message("old", of_ms, -1000) for of_ms in units]
    new = [message("new", of_ms, 1000) for of_ms in units]
    empty.log([[*old, *new], []], COMPACT)
    values = [value for _, _, value, _ in rows_of(empty, empty.name.records_table)]
    assert values == [None] * 3 + [b"new"] * 3


@pytest.mark.parametrize("way", ["apart", "joined", "without bounds"])
def test_keys_are_found_however_their_files_are_written(
    empty: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Of a file of one topic nothing is read unless a record is older. The names begin alike."""
    spark, table, read = empty.spark, ERASURES.in_catalog(), set[str]()
    name, other = (empty.name._replace(topic=f"t-with-a-long-name-{n}") for n in range(2))
    note_erased(spark, name, ALICE, ERASED_MS)
    note_erased(spark, other, BOB, ERASED_MS)
    has_bounds = way != "without bounds"
    set_properties(spark, table, {METRICS: None if has_bounds else "none"})
    if way != "apart":
        rewrite_files(spark, [table])
    set_properties(spark, table, {METRICS: None})

    def spy(store: Store, path: str, size: int, columns: Collection[TableColumn]) -> pa.Table:
        read.update(column.name for column in columns)
        return whole_file(store, path, size, columns)

    for module in (segment_planning, erasures):
        monkeypatch.setattr(module, "whole_file", spy)
    known = erased_keys(Topic(name, {}, spark))
    assert known is not None
    at_first = {"topic"} if way == "apart" else {"topic", "secret"}
    assert read == at_first
    for ms, is_refused in ((ERASED_MS, False), (ERASED_MS - 1, True)):
        times = pa.array([ms] * 2, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
        rows = pa.table({"key": [ALICE.encode(), BOB.encode()], "timestamp": times})
        assert known.refused_of(rows).tolist() == [is_refused, False]
        is_read = is_refused or not has_bounds
        assert read == at_first | ({"key_block", "erased_at"} if is_read else set())


def test_a_secret_that_is_missing_refuses_the_ingest(
    erased: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = secret_of(str(erased.name))
    monkeypatch.setenv(erasure_secrets.SECRETS, str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=rf"fingerprint {known.fingerprint}, found none"):
        erased.log(LOG, COMPACT)
    assert rows_of(erased, erased.name.records_table) == []
    with pytest.raises(ConfigurationError, match="Restore its file from a backup"):
        secret_for(erased.load())  # as an erasure asks for it
    assert not (tmp_path / "none").exists()
    erased.set({DESTROYED_SECRETS: known.fingerprint})
    erased.ingest(erased.home / "log", FIRST_MS)
    first, *_ = rows_of(erased, erased.name.records_table)
    assert first == (0, ALICE.encode(), b"one", None)


def test_an_export_has_no_record_of_an_erased_key(empty: Bench, tmp_path: Path) -> None:
    empty.log(LOG, COMPACT)
    note_erased(empty.spark, empty.name, ALICE, ERASED_MS)
    export(empty.spark, empty.name, tmp_path / "to")
    data = b"".join(path.read_bytes() for path in (tmp_path / "to").rglob("*.log"))
    assert data.count(ALICE.encode()) == 1  # of the record after the erasure
    assert data.count(BOB.encode()) == 1


def test_an_export_keeps_a_marked_tombstone_and_new_records(empty: Bench, tmp_path: Path) -> None:
    """A replica may need the tombstone. A record without a timestamp has the ingest's time."""
    empty.log([*LOG[:2], [Message(ALICE, "untimed", -FIRST_MS - 1)], []], COMPACT, ERASED_MS)
    empty.mark()
    note_erased(empty.spark, empty.name, ALICE, ERASED_MS)
    export(empty.spark, empty.name, tmp_path / "to")
    data = b"".join(path.read_bytes() for path in (tmp_path / "to").rglob("*.log"))
    assert data.count(ALICE.encode()) == 3
    assert b"untimed" in data


@pytest.mark.parametrize(("tombstone", "count"), [(None, 2), (2, 1), (9, 0)])
def test_a_key_that_is_erased_while_a_log_is_ingested_is_told(
    empty: Bench, meanwhile: Meanwhile, tombstone: int | None, count: int
) -> None:
    """The ingest had read the erased keys before. A tombstone supersedes what is before it."""
    directory = write_log(empty.home / "log", "t", LOG, COMPACT)

    def erase() -> None:
        place = None if tombstone is None else 0
        note_erased(empty.spark, empty.name, ALICE, ERASED_MS, place, tombstone)

    meanwhile(Step.INGEST_BATCHES, erase)
    result = empty.ingest(directory, FIRST_MS).topic
    assert result.get(ROWS_OF_ERASED_KEYS, 0) == count
    text = "records have a key that was erased while they were ingested. Run erase_keys again with"
    assert (f"{count} {text}" in result.get("note", "")) == (count > 0)


def test_a_secret_that_is_called_destroyed_erases_nothing(erased: Bench) -> None:
    secret = secret_of(str(erased.name))
    erased.log(LOG, COMPACT)
    erased.set({DESTROYED_SECRETS: secret.fingerprint})
    with pytest.raises(ConfigurationError, match="what is erased with it would come back"):
        secret_for(erased.load())
    erased.set({DESTROYED_SECRETS: None})
    assert secret_for(erased.load()) == secret


def test_a_hold_copies_no_record_of_an_erased_key(empty: Bench) -> None:
    empty.log([*LOG[:2], [Message(BOB, "2", NEW)], []], COMPACT)
    empty.set({"kafka.min.cleanable.dirty.ratio": "0.01"})
    note_erased(empty.spark, empty.name, ALICE, ERASED_MS)
    hold = make_hold(empty.spark, empty.name)
    assert count_covered(empty.load(), hold) == Covered(Counter({0: 4}), Counter({0: 2}))
    empty.mark()
    assert empty.clean(FIRST_MS).rows_removed == 4
    assert kept(empty.spark, empty.name) == {"h-1": [1, 2, 4]}
