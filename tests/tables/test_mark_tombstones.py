"""What makes a tombstone, what the log must not hold, and marking again (KIP-87)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import CommitConflictError, ConfigurationError, RequestError
from ebbtide.log.marking import FromOffset
from ebbtide.log.names import TopicName
from ebbtide.records.v2_writer import BatchFields, Record, write_batch
from ebbtide.tables import tasks
from ebbtide.tables.commits import Step
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.clean import execute_clean, plan_clean
from ebbtide.tables.stages.configure import plan_configure
from ebbtide.tables.stages.mark import execute_mark, plan_mark
from ebbtide.tables.stages.marks import candidates
from ebbtide.tables.stages.merge import merge_segments
from ebbtide.tables.stages.quarantine import RunOf
from ebbtide.tables.stages.replicate import execute_replicate, plan_replicate
from ebbtide.tables.stages.snapshots import execute_expire_snapshots
from ebbtide.tables.tombstones import tombstone_rule
from ebbtide.tables.topics import current_snapshot, load
from tests.lake_sandbox import LakeSandbox
from tests.tables.conftest import KilledError, Meanwhile
from tests.tables.exports import export, kafkas_states
from tests.tables.kafka_view import offsets, view_of_kafka, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, ingest, mark
from tests.tables.partition_log import write_segments

GOLDEN = Path(__file__).parents[1] / "records" / "golden"
FLAG = 0x20
NIGHT_MS = FIRST_MS + 10 * DAY_MS
COMPACT = {"kafka.cleanup.policy": "compact", "kafka.min.cleanable.dirty.ratio": "0.01"}
EXPLICIT = {"ebbtide.tombstone.explicit": "true"}
BY_HEADER = {"ebbtide.tombstone.header": "op=d"}
PREDICATE = "ebbtide.tombstone.predicate"
# As README has it.
DEBEZIUM = {
    PREDICATE: "coalesce(get_json_object(string(value), '$.payload.op'), "
    "get_json_object(string(value), '$.op')) = 'd'"
}

Headers = Sequence[tuple[str, str | None]]


def record(
    offset: int, value: str | None, headers: Headers = (), attributes: int = 0, key: str = ""
) -> Record:
    """A record; its key is its own where none is given."""
    encoded = [(name.encode(), None if of is None else of.encode()) for name, of in headers]
    of_value = None if value is None else value.encode()
    of_key = (key or f"k{offset}").encode()
    return Record(offset, FIRST_MS + offset, of_key, of_value, encoded, attributes)


def topic_of(
    sandbox: LakeSandbox,
    name: TopicName,
    directory: Path,
    records: Sequence[Record],
    *settings: dict[str, str],
    at_once: int = 2,
) -> None:
    """A log of these records, a segment of one batch for each `at_once`, and an empty one."""
    parts = [records[i : i + at_once] for i in range(0, len(records), at_once)]
    segments = {part[0].offset: [write_batch(BatchFields(), part)] for part in parts}
    write_segments(directory, {**segments, records[-1].offset + 1: []})
    ingest(sandbox.session, str(name), directory, FIRST_MS)
    for each in settings:
        configure(sandbox, name, each)


def configure(sandbox: LakeSandbox, name: TopicName, settings: dict[str, str]) -> None:
    """Set them as SQL does, without any check."""
    listed = ", ".join(
        "'{}' = '{}'".format(key, value.replace("'", "\\'")) for key, value in settings.items()
    )
    sandbox.session.sql(f"ALTER TABLE {name.records_table} SET TBLPROPERTIES ({listed})")


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


def marks(sandbox: LakeSandbox, name: TopicName) -> dict[int, str]:
    rows = sandbox.session.table(name.records_table).where("is_tombstone").collect()
    return {row["offset"]: row["tombstone_by"] for row in rows}


def quarantine(sandbox: LakeSandbox, name: TopicName) -> list[dict[str, Any]]:
    rows = sandbox.session.table(name.quarantine_table).orderBy("offset")
    return [row.asDict(recursive=True) for row in rows.collect()]


def left(sandbox: LakeSandbox, name: TopicName) -> list[int]:
    return offsets(view_of_table(sandbox.session, name, 0))


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


def test_a_delete_of_debezium_is_a_tombstone(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
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
    topic_of(sandbox, name, tmp_path, records, COMPACT, DEBEZIUM)
    outcome = mark(sandbox.session, str(name))
    assert outcome.partitions[0]["by"] == {"null_value": 1, "predicate": 3}
    assert marks(sandbox, name) == {
        3: "predicate",
        4: "null_value",
        8: "predicate",
        14: "predicate",
    }


def test_the_first_reason_that_holds_is_kept(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """Each record lacks one more of the reasons."""
    predicate = {PREDICATE: "string(value) = 'gone' OR string(key) = 'k0'"}
    op = [("op", "d")]
    records = [
        record(0, None, op, FLAG),
        record(1, "gone", op, FLAG),
        record(2, "gone", op),
        record(3, "gone"),
        record(4, "kept"),
    ]
    topic_of(sandbox, name, tmp_path, records, COMPACT, BY_HEADER, predicate)
    mark(sandbox.session, str(name))
    assert marks(sandbox, name) == {0: "null_value", 1: "flag", 2: "header", 3: "predicate"}
    values = sandbox.session.table(name.records_table).orderBy("offset").select("value").collect()
    assert [row[0] for row in values] == [None, b"gone", b"gone", b"gone", b"kept"]


HEADERS: dict[str, Headers] = {
    "none": [],
    "the value": [("op", "d")],
    "another value": [("op", "c")],
    "no value": [("op", None)],
    "an empty value": [("op", "")],
    "another name": [("Op", "d")],
    "the value among others": [("op", "c"), ("a", "b"), ("op", "d")],
}


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("op", set(HEADERS) - {"none", "another name"}),
        ("op=d", {"the value", "the value among others"}),
        ("op=", {"an empty value"}),
        ("no'pe", set()),
    ],
)
def test_a_header(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, setting: str, found: set[str]
) -> None:
    records = [record(offset, "v", headers) for offset, headers in enumerate(HEADERS.values())]
    topic_of(
        sandbox, name, tmp_path, records, COMPACT, {"ebbtide.tombstone.header": setting}, at_once=9
    )
    mark(sandbox.session, str(name))
    wanted = [offset for offset, case in enumerate(HEADERS) if case in found]
    assert marks(sandbox, name) == dict.fromkeys(wanted, "header")


@pytest.mark.parametrize(
    ("predicate", "found"),
    [
        pytest.param("offset > 3", "[UNRESOLVED_COLUMN", id="a column it may not see"),
        pytest.param("value =", "[PARSE_SYNTAX_ERROR]", id="no expression"),
        pytest.param("true) OR (true", "[PARSE_SYNTAX_ERROR]", id="parentheses of another"),
        pytest.param("string(value)", "one of type string", id="no boolean"),
        pytest.param("count(value) > 1", "WHERE", id="an aggregate"),
        pytest.param("row_number() OVER (ORDER BY timestamp) = 1", "indow", id="a window"),
        pytest.param("explode(array(true))", "GENERATOR", id="a generator"),
        pytest.param("rand() < 0.5", "not deterministic", id="chance"),
        pytest.param("timestamp < now()", "the time, the user or the place", id="the clock"),
        pytest.param("timestamp < current_date()", "the time, the user", id="the day"),
        pytest.param("exists(headers, h -> h.key = current_user())", "the user", id="the user"),
        pytest.param("timestamp < 'yesterday'", "with 'yesterday', which", id="the day as text"),
        pytest.param("key IN (SELECT key FROM t)", "[TABLE_OR_VIEW", id="a table"),
        pytest.param("EXISTS (SELECT 1 FROM range(3))", "a subquery", id="a subquery"),
    ],
)
def test_a_predicate_that_no_record_can_be_asked_is_refused_by_configure_and_by_a_run(
    sandbox: LakeSandbox, name: TopicName, predicate: str, found: str
) -> None:
    sandbox.topic(str(name))
    wanted = f"expected a boolean expression over key, value, headers and timestamp in {PREDICATE}="
    with pytest.raises(ConfigurationError) as refused:
        plan_configure(load(sandbox.session, name), {PREDICATE: predicate}, NIGHT_MS)
    assert str(refused.value).startswith(f"{wanted}{predicate}, found ")
    assert found in str(refused.value).split(", found ")[1]
    configure(sandbox, name, {PREDICATE: predicate})
    with pytest.raises(ConfigurationError) as again:
        plan_mark(load(sandbox.session, name))
    assert str(again.value).split("line 1")[0] == str(refused.value).split("line 1")[0]


def test_a_predicate_that_fails_on_a_record_stops_the_topic_before_anything_moves(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    records = [record(0, "1"), record(1, "secret"), record(2, None)]
    predicate = "cast(string(value) AS INT) = 1"
    topic_of(sandbox, name, tmp_path, records, COMPACT, {PREDICATE: predicate})
    before = current_snapshot(sandbox.session, name.records_table)
    with pytest.raises(ConfigurationError) as failed:
        mark(sandbox.session, str(name))
    said = str(failed.value)
    assert f"{PREDICATE}={predicate}, found that it fails on a record with CAST_INVALID_" in said
    assert "try_cast" in said
    assert "secret" not in said
    assert current_snapshot(sandbox.session, name.records_table) == before
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 0
    configure(sandbox, name, {PREDICATE: predicate.replace("cast", "try_cast")})
    mark(sandbox.session, str(name))
    assert marks(sandbox, name) == {0: "predicate", 2: "null_value"}


# -- what a mark does


def test_a_tombstone_with_a_value_lives_until_its_horizon(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    records = [
        *(record(0, "1", key="a"), record(1, "1", key="b")),
        *(record(2, "by me", [("op", "d")], key="a"), record(3, "by you", key="b")),
        *(record(4, "1", key="c"), record(5, "1", key="d")),
    ]
    predicate = {PREDICATE: "string(value) = 'by you'"}
    topic_of(sandbox, name, tmp_path, records, COMPACT, BY_HEADER, predicate)
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    view = view_of_table(sandbox.session, name, 0)
    assert offsets(view) == [2, 3, 4, 5]
    assert [row[4] for row in view.records[:2]] == [b"by me", b"by you"]
    assert view.batches[0]["delete_horizon_ms"] == NIGHT_MS + DAY_MS
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS - 1)
    assert left(sandbox, name) == [2, 3, 4, 5]
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert left(sandbox, name) == [4, 5]


def test_the_cleaner_goes_by_the_mark_and_by_nothing_else(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """A null value without a mark is a value, and a marked value is none."""
    records = [record(offset, value) for offset, value in enumerate(["v", None, None, "v"])]
    topic_of(sandbox, name, tmp_path, records, COMPACT)
    mark(sandbox.session, str(name))
    table = name.records_table
    sandbox.session.sql(
        f"UPDATE {table} SET is_tombstone = offset IN (0, 2), tombstone_by = "
        "if(offset IN (0, 2), 'flag', NULL)"
    )
    clean(sandbox.session, str(name), NIGHT_MS)
    assert left(sandbox, name) == [0, 1, 2, 3]
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert left(sandbox, name) == [1, 3]


def test_in_a_log_that_is_not_compacted_a_mark_is_readable_and_removes_nothing(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    records = [record(0, "v", attributes=FLAG), record(1, None), record(2, "v", [("op", "d")])]
    topic_of(sandbox, name, tmp_path, records, {"kafka.cleanup.policy": "delete"}, BY_HEADER)
    mark(sandbox.session, str(name))
    for day in range(3):
        clean(sandbox.session, str(name), NIGHT_MS + day * DAY_MS)
    assert marks(sandbox, name) == {0: "flag", 1: "null_value", 2: "header"}
    assert left(sandbox, name) == [0, 1, 2]


# -- what it costs


def data_files(sandbox: LakeSandbox, name: TopicName) -> dict[int, Path]:
    rows = sandbox.session.sql(
        f"SELECT partition.segment, file_path FROM {name.records_table}.data_files"
    ).collect()
    return {segment: Path(path.removeprefix("file:")) for segment, path in rows}


def test_files_without_null_value_flag_or_unmarked_record_are_not_read(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """Their counts and bounds in the manifests say it; those without a match may be gone."""
    records = [
        *(record(0, None), record(1, "v")),  # marked before
        *(record(2, "v"), record(3, "")),
        *(record(4, "v"), record(5, None)),
        *(record(6, "v"), record(7, "v", attributes=FLAG)),
        *(record(8, "v", attributes=0x1F), record(9, "v")),
    ]
    topic_of(sandbox, name, tmp_path, records[:2], COMPACT)
    mark(sandbox.session, str(name))
    topic_of(sandbox, name, tmp_path, records)
    before = data_files(sandbox, name)
    hidden = [path for segment, path in before.items() if segment not in (4, 6)]
    for path in hidden:
        path.rename(path.with_suffix(".away"))
    outcome = mark(sandbox.session, str(name))
    for path in hidden:
        path.with_suffix(".away").rename(path)
    assert outcome.partitions[0]["by"] == {"null_value": 1, "flag": 1}
    assert marks(sandbox, name) == {0: "null_value", 5: "null_value", 7: "flag"}


ALWAYS_READ = {
    *("partition", "segment", "batch", "offset", "attributes"),
    *("is_tombstone", "tombstone_by", "value"),
}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        pytest.param({}, set(), id="value and flag"),
        pytest.param(EXPLICIT, set(), id="explicit"),
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
    rows: Any = candidates(topic, rule, {0: (0, 2)}, snapshot)
    (read,) = rows._jdf.queryExecution().optimizedPlan().collectLeaves().mkString().splitlines()
    columns = re.findall(r"(\w+)#\d+L?", read)
    assert set(columns) == ALWAYS_READ | more


def test_much_is_marked_in_tasks(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LOCAL_ROWS", 0)
    forbidden_topic(sandbox, name, tmp_path)
    mark(sandbox.session, str(name))
    assert left(sandbox, name) == [0, 2, 3, 6, 7]
    assert marks(sandbox, name) == {2: "flag", 3: "header", 6: "header"}


def test_only_the_rows_that_change_are_written_again(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    topic_of(
        sandbox, name, tmp_path, [record(i, None if i == 3 else "v") for i in range(6)], COMPACT
    )
    mark(sandbox.session, str(name))
    snapshot = current_snapshot(sandbox.session, name.records_table)
    (summary,) = sandbox.session.sql(
        f"SELECT summary FROM {name.records_table}.snapshots WHERE snapshot_id = {snapshot}"
    ).collect()
    assert summary[0]["added-records"] == "1"
    assert summary[0]["added-position-deletes"] == "1"
    assert "deleted-data-files" not in summary[0]


# -- what the log must not hold


FORBIDDEN = [
    *(record(0, "v"), record(1, None, [("trace", "7")])),
    *(record(2, None, attributes=FLAG), record(3, None, [("op", "d")])),
    *(record(4, None), record(5, None)),
    *(record(6, "v", [("op", "d")]), record(7, "v")),
]
FORBIDDEN_OFFSETS = [1, 4, 5]


def forbidden_topic(sandbox: LakeSandbox, name: TopicName, directory: Path) -> None:
    topic_of(sandbox, name, directory, FORBIDDEN, COMPACT, EXPLICIT, BY_HEADER)


def test_a_null_value_that_nothing_marks_leaves_the_log(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    before = view_of_table(sandbox.session, name, 0)
    plan = plan_mark(load(sandbox.session, name)).outcome()
    assert left(sandbox, name) == list(range(8))
    note = (
        "3 records have a null value that nothing marks as a tombstone, which "
        f"ebbtide.tombstone.explicit=true forbids: they go to {name.quarantine_table}"
    )
    assert (plan.partitions[0]["quarantined"], plan.topic["note"]) == (3, note)

    outcome = mark(sandbox.session, str(name), now_ms=NIGHT_MS)
    assert caplog.messages == [f"{name}: {note}"]
    assert outcome.topic == {"note": note, "quarantine": name.quarantine_table}
    assert (outcome.rows_removed, outcome.partitions[0]["quarantined"]) == (3, 3)
    assert outcome.partitions[0]["by"] == {"flag": 1, "header": 2}
    assert marks(sandbox, name) == {2: "flag", 3: "header", 6: "header"}
    view = view_of_table(sandbox.session, name, 0)
    assert offsets(view) == [0, 2, 3, 6, 7]
    assert view.batches == before.batches
    held = quarantine(sandbox, name)
    assert [row["offset"] for row in held] == FORBIDDEN_OFFSETS
    first = held[0]
    assert (first["partition"], first["batch"], first["key"], first["value"]) == (0, 0, b"k1", None)
    assert first["headers"] == [{"key": "trace", "value": b"7"}]
    assert (first["reason"], first["run_id"]) == ("unmarked_null_value", "run")
    assert first["quarantined_at"].timestamp() * 1000 == NIGHT_MS
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 8
    again = mark(sandbox.session, str(name))
    assert (again.rows_removed, again.topic) == (0, {})


QUARANTINE_STEPS = [
    *(Step.QUARANTINE_TABLE, Step.QUARANTINE_RECORDS, Step.QUARANTINE_STATE),
    *(Step.MARK_RECORDS, Step.MARK_STATE),
]


@pytest.mark.parametrize("step", QUARANTINE_STEPS)
def test_a_killed_marking_quarantines_each_record_once(
    sandbox: LakeSandbox,
    name: TopicName,
    tmp_path: Path,
    kafka_jars: Path,
    kill_at: list[Step],
    step: Step,
) -> None:
    """And at no time is the log one that an export refuses."""
    forbidden_topic(sandbox, name, tmp_path / "log")
    kill_at.append(step)
    with pytest.raises(KilledError):
        mark(sandbox.session, str(name))
    export(sandbox.session, name, tmp_path / "killed")
    states = kafkas_states(tmp_path / "killed", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == left(sandbox, name)
    mark(sandbox.session, str(name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == FORBIDDEN_OFFSETS
    assert left(sandbox, name) == [0, 2, 3, 6, 7]
    assert marks(sandbox, name) == {2: "flag", 3: "header", 6: "header"}
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 8


def test_the_other_jobs_go_on_with_what_is_left(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kafka_jars: Path
) -> None:
    """Segment 4 has lost all of its records, and its batch stays until a round."""
    forbidden_topic(sandbox, name, tmp_path / "log")
    configure(sandbox, name, {"history.expire.max-snapshot-age-ms": "0"})
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    assert left(sandbox, name) == [0, 2, 3, 6, 7]
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    view = view_of_table(sandbox.session, name, 0)
    assert offsets(view) == [0, 7]
    merge_segments(load(sandbox.session, name), at_least=2)
    execute_expire_snapshots(load(sandbox.session, name))
    assert view_of_table(sandbox.session, name, 0) == view
    export(sandbox.session, name, tmp_path / "out")
    states = kafkas_states(tmp_path / "out", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [0, 7]
    records = [*FORBIDDEN, record(8, None), record(9, "v")]
    topic_of(sandbox, name, tmp_path / "log", records)
    assert mark(sandbox.session, str(name)).rows_removed == 1
    assert left(sandbox, name) == [0, 7, 9]


def test_what_its_owner_deletes_from_the_quarantine_leaves_the_disk(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    configure(sandbox, name, {"history.expire.max-snapshot-age-ms": "0"})
    mark(sandbox.session, str(name))
    table = name.quarantine_table
    sandbox.session.sql(f"DELETE FROM {table} WHERE offset = 4")
    execute_expire_snapshots(load(sandbox.session, name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == [1, 5]
    on_disk = sandbox.session.sql(f"SELECT record_count FROM {table}.all_files").collect()
    assert [row[0] for row in on_disk] == [2]


def test_a_log_that_begins_anew_shares_no_place_with_the_one_before(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """Its offsets are in the quarantine already, as those of other records."""
    forbidden_topic(sandbox, name, tmp_path / "1")
    mark(sandbox.session, str(name))
    for table in (name.records_table, name.batches_table):
        sandbox.session.sql(f"DROP TABLE {table}")
    sandbox.session.sql(f"DROP VIEW {name.committed_view}")
    forbidden_topic(sandbox, name, tmp_path / "2")
    mark(sandbox.session, str(name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == sorted(2 * FORBIDDEN_OFFSETS)
    assert left(sandbox, name) == [0, 2, 3, 6, 7]


def test_what_delete_records_hides_is_not_quarantined(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    configure(sandbox, name, {"ebbtide.state.0.log-start-offset": "5"})
    mark(sandbox.session, str(name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == [5]


@pytest.mark.parametrize("magic", [0, 1])
def test_before_magic_2_a_null_value_is_always_a_tombstone(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, magic: int
) -> None:
    case = f"magic-{magic}"
    write_log(tmp_path, "t", [[]], {"cleanup.policy": "compact"})
    first = f"{0:020}.log"
    shutil.copy(GOLDEN / case / first, tmp_path / "t-0" / first)
    ingest(sandbox.session, str(name), tmp_path, NIGHT_MS)
    configure(sandbox, name, EXPLICIT | {PREDICATE: "value IS NULL"})
    batches = json.loads((GOLDEN / case / "kafka.json").read_text())
    nulls = [r["offset"] for b in batches for r in b["records"] if r["value"] is None]
    assert len(nulls) > 2
    outcome = mark(sandbox.session, str(name))
    assert marks(sandbox, name) == dict.fromkeys(nulls, "null_value")
    assert outcome.rows_removed == 0


def test_formats_are_told_apart_in_one_log(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """By batch, wherever the rows of records and batches lie."""
    write_log(tmp_path, "t", [[]], {"cleanup.policy": "compact"})
    old = (GOLDEN / "magic-1" / f"{0:020}.log").read_bytes()
    batches = json.loads((GOLDEN / "magic-1" / "kafka.json").read_text())
    end = batches[-1]["last_offset"] + 1
    new = [write_batch(BatchFields(), [record(end, None), record(end + 1, "v")])]
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(old + new[0])
    write_segments(tmp_path, {end + 2: [write_batch(BatchFields(), [record(end + 2, None)])]})
    ingest(sandbox.session, str(name), tmp_path, NIGHT_MS)
    configure(sandbox, name, EXPLICIT)
    nulls = [r["offset"] for b in batches for r in b["records"] if r["value"] is None]
    mark(sandbox.session, str(name))
    assert marks(sandbox, name) == dict.fromkeys(nulls, "null_value")
    assert [row["offset"] for row in quarantine(sandbox, name)] == [end, end + 2]


def test_configuring_shows_how_many_would_go(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    topic_of(sandbox, name, tmp_path, FORBIDDEN, COMPACT)
    plan = plan_configure(load(sandbox.session, name), EXPLICIT | BY_HEADER, NIGHT_MS)
    shown: Outcome = plan.outcome()
    assert shown.partitions[0]["next_run"]["mark_tombstones"] == {
        "marked": 3,
        "by": {"flag": 1, "header": 2},
        "unmarked": 0,
        "quarantined": 3,
    }
    assert shown.topic["note"].startswith("3 records have a null value that nothing marks")
    other = plan_configure(load(sandbox.session, name), {"kafka.retention.ms": "7"}, NIGHT_MS)
    assert "mark_tombstones" not in other.outcome().partitions[0]["next_run"]


def test_a_message_with_an_empty_value_is_no_tombstone(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    write_log(tmp_path, "t", [[Message("a", ""), Message("b", None)]], {})
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    configure(sandbox, name, EXPLICIT)
    assert mark(sandbox.session, str(name)).partitions[0]["quarantined"] == 1
    assert left(sandbox, name) == [0]


# -- marking again


AGAIN = [
    *(record(0, None), record(1, "d")),
    *(record(2, "v", [("op", "d")]), record(3, None)),
    *(record(4, "d", [("op", "d")]), record(5, "v", attributes=FLAG)),
]
SAYS_D = {PREDICATE: "string(value) = 'd'"}


def marked_by_header(sandbox: LakeSandbox, name: TopicName, directory: Path) -> None:
    topic_of(sandbox, name, directory, AGAIN, COMPACT, BY_HEADER)
    mark(sandbox.session, str(name))
    assert marks(sandbox, name) == {
        0: "null_value",
        2: "header",
        3: "null_value",
        4: "header",
        5: "flag",
    }
    remove = f"ALTER TABLE {name.records_table} UNSET TBLPROPERTIES ('ebbtide.tombstone.header')"
    sandbox.session.sql(remove)
    configure(sandbox, name, SAYS_D)


@pytest.mark.parametrize("step", [None, Step.MARK_AGAIN, Step.MARK_RECORDS, Step.MARK_STATE])
def test_a_changed_rule_is_for_what_is_marked_again(
    sandbox: LakeSandbox,
    name: TopicName,
    tmp_path: Path,
    kill_at: list[Step],
    step: Step | None,
) -> None:
    """From offset 1 on: 1 becomes one, 2 is none any more, 4 is one for another reason."""
    marked_by_header(sandbox, name, tmp_path)
    assert mark(sandbox.session, str(name)).partitions[0]["marked"] == 0
    again = [FromOffset(0, 1)]
    plan = plan_mark(load(sandbox.session, name), again).outcome().partitions[0]
    assert plan["by"] == {"predicate": 2}
    assert (plan["marked"], plan["unmarked"]) == (2, 1)
    if step is not None:
        kill_at.append(step)
        with pytest.raises(KilledError):
            mark(sandbox.session, str(name), again)
        again = [] if step != Step.MARK_AGAIN else again  # the next night finishes it
    mark(sandbox.session, str(name), again)
    assert marks(sandbox, name) == {
        0: "null_value",
        1: "predicate",
        3: "null_value",
        4: "predicate",
        5: "flag",
    }
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["value"] for row in rows] == [r.value for r in AGAIN]
    assert (rows[2]["is_tombstone"], rows[2]["tombstone_by"]) == (False, None)
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 6


def test_what_was_a_tombstone_may_be_what_the_log_must_not_hold(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """Marks by a null value fall away, so the records go; those before the offset stay."""
    marked_by_header(sandbox, name, tmp_path)
    configure(sandbox, name, EXPLICIT)
    mark(sandbox.session, str(name), [FromOffset(None, 2)])
    assert marks(sandbox, name) == {0: "null_value", 4: "predicate", 5: "flag"}
    assert [row["offset"] for row in quarantine(sandbox, name)] == [3]
    assert left(sandbox, name) == [0, 1, 2, 4, 5]
    clean(sandbox.session, str(name), NIGHT_MS)
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert left(sandbox, name) == [1, 2]


def test_what_is_cleaned_is_not_marked_again(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step]
) -> None:
    """Nor what a round in flight is about to clean."""
    topic_of(sandbox, name, tmp_path, AGAIN[:4], COMPACT)
    mark(sandbox.session, str(name))
    kill_at.append(Step.ROUND_STATE)
    with pytest.raises(KilledError):
        clean(sandbox.session, str(name), NIGHT_MS)
    for _ in ("in flight", "done"):
        with pytest.raises(RequestError, match=r"expected an offset in \[4, 4\] to mark"):
            mark(sandbox.session, str(name), [FromOffset(0, 3)])
        clean(sandbox.session, str(name), NIGHT_MS)
    assert load(sandbox.session, name).partitions[0].first_dirty_offset == 4
    mark(sandbox.session, str(name), [FromOffset(0, 4)])


def test_a_round_does_not_start_on_what_is_being_marked_again(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, meanwhile: Meanwhile
) -> None:
    """It was planned before; planned again, it stays below."""
    marked_by_header(sandbox, name, tmp_path)
    spark = sandbox.session
    plan = plan_clean(load(spark, name), NIGHT_MS)

    def begin_again() -> None:
        configure(sandbox, name, {"ebbtide.state.0.first-unmarked-offset": "1"})

    begin_again()
    with pytest.raises(CommitConflictError, match="to be marked up to 6, found 1"):
        execute_clean(plan)
    assert clean(spark, str(name), NIGHT_MS).partitions[0]["picked"] is False
    mark(spark, str(name))
    # And a marking that another one overtakes does not skip what that has left.
    topic_of(sandbox, name, tmp_path, [*AGAIN, record(6, None), record(7, "v")])
    plan_of_night = plan_mark(load(spark, name), [])
    meanwhile(Step.MARK_RECORDS, begin_again)
    with pytest.raises(CommitConflictError, match="to be marked up to 6, found 1"):
        execute_mark(plan_of_night, RunOf("night", at(NIGHT_MS)))
    mark(spark, str(name))
    assert load(spark, name).partitions[0].first_unmarked_offset == 8


# -- replicas


def test_a_replica_marks_and_quarantines_by_itself(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kafka_jars: Path
) -> None:
    """What the primary lost before, it never gets; what it got before, it takes out itself."""
    spark = sandbox.session
    replica = TopicName(f"{name.cluster[:40]}_copy", "t")
    topic_of(sandbox, name, tmp_path / "log", FORBIDDEN[:4], COMPACT, EXPLICIT, BY_HEADER)
    configure(sandbox, name, {"ebbtide.replicas": f"lake.{replica.cluster}"})
    execute_replicate(plan_replicate(load(spark, name)), NIGHT_MS)
    mark(spark, str(name))
    topic_of(sandbox, name, tmp_path / "log", FORBIDDEN)
    mark(spark, str(name))
    execute_replicate(plan_replicate(load(spark, name)), NIGHT_MS)
    assert left(sandbox, replica) == [0, 1, 2, 3, 6, 7]
    mark(spark, str(replica))
    for of in (name, replica):
        assert left(sandbox, of) == [0, 2, 3, 6, 7]
        assert marks(sandbox, of) == {2: "flag", 3: "header", 6: "header"}
    assert [row["offset"] for row in quarantine(sandbox, name)] == FORBIDDEN_OFFSETS
    assert [row["offset"] for row in quarantine(sandbox, replica)] == [1]
    export(spark, replica, tmp_path / "out")
    states = kafkas_states(tmp_path / "out", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [0, 2, 3, 6, 7]
    execute_replicate(plan_replicate(load(spark, name)), NIGHT_MS)
    assert not plan_replicate(load(spark, name)).behind
