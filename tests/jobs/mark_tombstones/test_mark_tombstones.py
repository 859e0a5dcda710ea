"""What makes a tombstone, what a mark does and what it costs (KIP-87)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.jobs.configure_topic import plan_configure
from ebbtide.jobs.mark_tombstones import changed_records, plan_mark, tombstone_rule
from ebbtide.settings.names import TopicName
from ebbtide.spark import tasks
from ebbtide.specs.erase_request import FromOffset
from tests.jobs.mark_tombstones.tombstones import (
    BY_HEADER,
    COMPACT,
    DEBEZIUM,
    EXPLICIT,
    FLAG,
    NIGHT_MS,
    PREDICATE,
    Headers,
    forbidden_topic,
    marks,
    quarantine,
    record,
    topic_of,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables.bench import Bench
from tests.tables.kafka_view import offsets
from tests.tables.nights import DAY_MS


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


# -- what makes a tombstone


def row_of_debezium(op: str) -> dict[str, Any]:
    """A change event as Debezium's PostgreSQL connector writes it, without its schema."""
    row = {"id": 1004, "first_name": "Anne", "email": "annek@noanswer.org"}
    return {
        "before": row if op in "ud" else None,
        "after": None if op == "d" else row,
        "source": {
            "version": "3.0.0.Final",
            "connector": "postgresql",
            "name": "dbserver1",
            "ts_ms": 1_589_362_330_904,
            "snapshot": "true" if op == "r" else "false",
            "db": "postgres",
            "schema": "inventory",
            "table": "customers",
            "txId": 571,
            "lsn": 24_023_128,
            "xmin": None,
        },
        "transaction": None,
        "op": op,
        "ts_ms": 1_589_362_331_050,
    }


def with_schema(op: str) -> str:
    """The same as JsonConverter writes it with schemas.enable."""
    fields = [{"type": "string", "optional": False, "field": "op"}]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "Envelope"}
    return json.dumps({"schema": schema, "payload": row_of_debezium(op)})


def test_a_delete_of_debezium_is_a_tombstone(bench: Bench) -> None:
    values = [
        *(json.dumps(row_of_debezium(op)) for op in "crud"),  # offset 3 deletes
        None,  # what Debezium sends after it
        *(with_schema(op) for op in "crud"),  # 8
        '{"op": "d", "before": {"id": 7',  # malformed
        '"d"',
        "",
        '{"op": null}',
        '{"after": {"op": "d"}}',
        '{"op":"d"}',  # 14
    ]
    records = [record(offset, value) for offset, value in enumerate(values)]
    topic_of(bench, records, COMPACT, DEBEZIUM)
    outcome = bench.mark()
    assert outcome.partitions[0]["by_rule"] == {"null_value": 1, "predicate": 3}
    assert marks(bench) == {
        3: "predicate",
        4: "null_value",
        8: "predicate",
        14: "predicate",
    }


def test_the_page_has_that_predicate() -> None:
    page = Path(__file__).parents[3] / "docs" / "tombstones.md"
    assert f"`{DEBEZIUM[PREDICATE]}`" in page.read_text()


def test_the_first_reason_that_holds_is_kept(bench: Bench) -> None:
    """Each record lacks one more of the reasons."""
    predicate = {PREDICATE: "string(value) = 'gone' OR string(key) = 'k0'"}
    op = [("op", "d")]
    records = [
        record(0, None, op, FLAG),
        record(1, "gone", op, FLAG),
        record(2, "gone", op),
        record(3, "gone"),
        record(4, "kept"),
        record(5, "", attributes=FLAG),  # empty is not null
    ]
    topic_of(bench, records, COMPACT, BY_HEADER, predicate)
    bench.mark()
    by_offset = {0: "null_value", 1: "flag", 2: "header", 3: "predicate", 5: "flag"}
    assert marks(bench) == by_offset
    values = bench.spark.table(bench.name.records_table).orderBy("offset").select("value").collect()
    assert [row[0] for row in values] == [None, b"gone", b"gone", b"gone", b"kept", b""]


HEADERS: dict[str, Headers] = {
    "none": [],
    "the value": [("op", "d")],
    "another value": [("op", "c")],
    "no value": [("op", None)],
    "an empty value": [("op", "")],
    "another name": [("Op", "d")],
    "the value among others": [("op", "c"), ("a", "b"), ("op", "d")],
}


@pytest.mark.long(but="op-tombstones0")
@pytest.mark.parametrize(
    ("setting", "tombstones"),
    [
        ("op", set(HEADERS) - {"none", "another name"}),
        ("op=d", {"the value", "the value among others"}),
        ("op=", {"an empty value"}),
        ("no'pe", set()),
    ],
)
def test_a_header(bench: Bench, setting: str, tombstones: set[str]) -> None:
    records = [record(offset, "v", headers) for offset, headers in enumerate(HEADERS.values())]
    topic_of(bench, records, COMPACT, {"ebbtide.tombstone.header": setting}, at_once=9)
    bench.mark()
    wanted = [offset for offset, case in enumerate(HEADERS) if case in tombstones]
    assert marks(bench) == dict.fromkeys(wanted, "header")


@pytest.mark.parametrize(
    ("predicate", "type_named"),
    [
        pytest.param("offset > 3", "[UNRESOLVED_COLUMN", id="a column it may not see"),
        pytest.param("value =", "[PARSE_SYNTAX_ERROR]", id="no expression"),
        pytest.param("true) OR (true", "[PARSE_SYNTAX_ERROR]", id="parentheses of another"),
        pytest.param("string(value)", "one of type string", id="no boolean"),
        pytest.param("count(value) > 1", "WHERE", id="an aggregate"),
        pytest.param("row_number() OVER (ORDER BY timestamp) = 1", "indow", id="a window"),
        pytest.param("explode(array(true))", "GENERATOR", id="a generator"),
        pytest.param("rand() < 0.5", "not deterministic", id="chance"),
        pytest.param("timestamp < now()", "depends on the time, user or place", id="the clock"),
        pytest.param("timestamp < current_date()", "the time, user", id="the day"),
        pytest.param("exists(headers, h -> h.key = current_user())", "time, user", id="the user"),
        pytest.param(
            "timestamp < 'yesterday'", "text that Spark replaces with a time", id="the day as text"
        ),
        pytest.param("key IN (SELECT key FROM t)", "[TABLE_OR_VIEW", id="a table"),
        pytest.param("EXISTS (SELECT 1 FROM range(3))", "a subquery", id="a subquery"),
    ],
)
def test_a_predicate_that_no_record_can_be_asked_is_refused_by_configure_and_by_a_run(
    bench: Bench, predicate: str, type_named: str
) -> None:
    bench.sandbox.topic(str(bench.name))
    wanted = f"expected a boolean expression over key, value, headers and timestamp in {PREDICATE}="
    with pytest.raises(ConfigurationError) as refused:
        plan_configure(bench.load(), {PREDICATE: predicate}, NIGHT_MS)
    assert str(refused.value).startswith(f"{wanted}{predicate}, found ")
    assert type_named in str(refused.value).split(", found ")[1]
    bench.set({PREDICATE: predicate})
    with pytest.raises(ConfigurationError) as again:
        plan_mark(bench.load())
    assert str(again.value).split("line 1")[0] == str(refused.value).split("line 1")[0]


def test_a_predicate_that_fails_on_a_record_stops_the_topic_before_anything_moves(
    bench: Bench,
) -> None:
    records = [record(0, "1"), record(1, "secret"), record(2, None)]
    predicate = "cast(string(value) AS INT) = 1"
    topic_of(bench, records, COMPACT, {PREDICATE: predicate})
    before = current_snapshot(bench.spark, bench.name.records_table)
    with pytest.raises(ConfigurationError) as failed:
        bench.mark()
    message = str(failed.value)
    assert f"{PREDICATE}={predicate}, found that it fails on a record with CAST_INVALID_" in message
    assert "try_cast" in message
    assert "secret" not in message
    assert current_snapshot(bench.spark, bench.name.records_table) == before
    assert bench.load().partitions[0].first_unmarked_offset == 0
    bench.set({PREDICATE: predicate.replace("cast", "try_cast")})
    bench.mark()
    assert marks(bench) == {0: "predicate", 2: "null_value"}


# -- what a mark does


def test_a_tombstone_with_a_value_lives_until_its_horizon(bench: Bench) -> None:
    records = [
        *(record(0, "1", key="a"), record(1, "1", key="b")),
        *(record(2, "by me", [("op", "d")], key="a"), record(3, "by you", key="b")),
        *(record(4, "1", key="c"), record(5, "1", key="d")),
    ]
    predicate = {PREDICATE: "string(value) = 'by you'"}
    topic_of(bench, records, COMPACT, BY_HEADER, predicate)
    bench.mark()
    bench.clean(NIGHT_MS)
    view = bench.view()
    assert offsets(view) == [2, 3, 4, 5]
    assert [row[4] for row in view.records[:2]] == [b"by me", b"by you"]
    assert view.batches[0]["delete_horizon_ms"] == NIGHT_MS + DAY_MS
    bench.clean(NIGHT_MS + DAY_MS - 1)
    assert bench.left() == [2, 3, 4, 5]
    bench.clean(NIGHT_MS + DAY_MS)
    assert bench.left() == [4, 5]


@pytest.mark.long
def test_the_cleaner_goes_by_the_mark_and_by_nothing_else(bench: Bench) -> None:
    """A null value without a mark is a value, and a marked value is none."""
    records = [record(offset, value) for offset, value in enumerate(["v", None, None, "v"])]
    topic_of(bench, records, COMPACT)
    bench.mark()
    table = bench.name.records_table
    bench.spark.sql(
        f"UPDATE {table} SET is_tombstone = offset IN (0, 2), tombstone_by = "
        "if(offset IN (0, 2), 'flag', NULL)"
    )
    bench.clean(NIGHT_MS)
    assert bench.left() == [0, 1, 2, 3]
    bench.clean(NIGHT_MS + DAY_MS)
    assert bench.left() == [1, 3]


@pytest.mark.long
def test_in_a_log_that_is_not_compacted_a_mark_is_readable_and_removes_nothing(
    bench: Bench,
) -> None:
    records = [record(0, "v", attributes=FLAG), record(1, None), record(2, "v", [("op", "d")])]
    topic_of(bench, records, {"kafka.cleanup.policy": "delete"}, BY_HEADER)
    bench.mark()
    for day in range(3):
        bench.clean(NIGHT_MS + day * DAY_MS)
    assert marks(bench) == {0: "flag", 1: "null_value", 2: "header"}
    assert bench.left() == [0, 1, 2]


# -- what it costs


def data_files(bench: Bench) -> dict[int, Path]:
    rows = bench.spark.sql(
        f"SELECT partition.segment, file_path FROM {bench.name.records_table}.data_files"
    ).collect()
    return {segment: Path(path.removeprefix("file:")) for segment, path in rows}


@pytest.mark.long
def test_files_without_null_value_flag_or_unmarked_record_are_not_read(bench: Bench) -> None:
    """Their counts and bounds in the manifests say it; those without a match may be gone."""
    records = [
        *(record(0, None), record(1, "v")),  # marked before
        *(record(2, "v"), record(3, "")),
        *(record(4, "v"), record(5, None)),
        *(record(6, "v"), record(7, "v", attributes=FLAG)),
        *(record(8, "v", attributes=0x1F), record(9, "v")),
    ]
    topic_of(bench, records[:2], COMPACT)
    bench.mark()
    topic_of(bench, records)
    before = data_files(bench)
    hidden = [path for segment, path in before.items() if segment not in (4, 6)]
    for path in hidden:
        path.rename(path.with_suffix(".away"))
    outcome = bench.mark()
    for path in hidden:
        path.with_suffix(".away").rename(path)
    assert outcome.partitions[0]["by_rule"] == {"null_value": 1, "flag": 1}
    assert marks(bench) == {0: "null_value", 5: "null_value", 7: "flag"}


ALWAYS_READ = {
    *("partition", "segment", "offset", "attributes"),
    *("is_tombstone", "tombstone_by", "value"),
}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        pytest.param({}, set(), id="value and flag"),
        pytest.param(EXPLICIT, {"batch"}, id="explicit, beside the batches table"),
        pytest.param(BY_HEADER, {"headers"}, id="a header"),
        pytest.param({PREDICATE: "timestamp IS NULL"}, {"timestamp"}, id="a predicate"),
    ],
)
def test_only_the_columns_that_a_rule_asks_for_are_read(
    sandbox: LakeSandbox, name: TopicName, settings: dict[str, str], more: set[str]
) -> None:
    sandbox.topic(str(name), config=settings)
    sandbox.records(str(name), [(0, 1)])
    topic = load(sandbox.session, name)
    rule = tombstone_rule(sandbox.session, topic.config)
    snapshot = current_snapshot(sandbox.session, name.records_table)
    assert snapshot is not None
    changed = changed_records(topic, rule, {0: (0, 2)}, snapshot)
    rows: Any = changed.select("partition", "segment", "offset", "becomes")
    read, *_ = rows._jdf.queryExecution().optimizedPlan().collectLeaves().mkString().splitlines()
    columns = re.findall(r"(\w+)#\d+L?", read)
    assert set(columns) == ALWAYS_READ | more


@pytest.mark.long
def test_much_is_marked_in_tasks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "is_on_driver", lambda *_: False)
    forbidden_topic(bench)
    bench.mark()
    assert bench.left() == [0, 2, 3, 6, 7]
    assert marks(bench) == {2: "flag", 3: "header", 6: "header"}


def test_only_the_rows_that_change_are_written_again(bench: Bench) -> None:
    topic_of(bench, [record(i, None if i == 3 else "v") for i in range(6)], COMPACT)
    bench.mark()
    snapshot = current_snapshot(bench.spark, bench.name.records_table)
    (summary,) = bench.spark.sql(
        f"SELECT summary FROM {bench.name.records_table}.snapshots WHERE snapshot_id = {snapshot}"
    ).collect()
    assert summary[0]["added-records"] == "1"
    assert summary[0]["added-position-deletes"] == "1"
    assert "deleted-data-files" not in summary[0]


@pytest.mark.long
def test_the_driver_gets_a_row_a_segment_however_many_records_change(
    bench: Bench, driver_rows: list[int]
) -> None:
    nulls = [record(i, None) for i in range(80)]
    topic_of(bench, nulls, COMPACT, at_once=40)
    driver_rows.clear()
    outcome = bench.mark()
    assert sum(driver_rows) == 0  # the plain rule asks no query
    assert outcome.partitions[0]["by_rule"] == {"null_value": 80}
    assert len(marks(bench)) == 80
    driver_rows.clear()
    bench.set(EXPLICIT)
    outcome = bench.mark([FromOffset(0, 0)])
    assert outcome.rows_removed == len(quarantine(bench)) == 80
    assert max(driver_rows[:-1]) <= 2  # the last are the test's own
    assert bench.left() == []
