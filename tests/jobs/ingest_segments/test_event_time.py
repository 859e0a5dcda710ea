"""Event times from headers and expressions, read in Spark and tracked at ingest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import ConfigurationError
from ebbtide.jobs.configure_topic import execute_configure, plan_configure
from ebbtide.jobs.ingest_segments.append import event_time_of
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.settings.config import OF_TIMESTAMP, EventTime, parse_config
from ebbtide.spark.expressions import COLUMNS
from ebbtide.state.topic_state import CHECKSUM, FILES_SLICE
from tests.jobs.ingest_segments.conftest import NOW_MS, SmallLog
from tests.lake_sandbox import LakeSandbox
from tests.tables.nights import HOUR_MS
from tests.tables.partition_log import T0, checkpoint

EVENT_TIME = "ebbtide.event.time"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


# What headers of the name say.
HEADERS: dict[str, tuple[list[bytes | None], int | None]] = {
    "milliseconds": ([b"1700000000123"], 1_700_000_000_123),
    "the epoch": ([b"0"], 0),
    "ISO 8601 in UTC": ([b"2023-11-14T22:13:20Z"], 1_700_000_000_000),
    "microseconds": ([b"2023-11-14T22:13:20.123456Z"], 1_700_000_000_123),
    "with its zone": ([b"2023-11-15T03:43:20.5+05:30"], 1_700_000_000_500),
    "without seconds": ([b"2023-11-14T21:13-01:00"], None),
    "the last year": ([b"253402300799999"], 253_402_300_799_999),
    "the last header of that name": ([b"1", b"2"], 2),
    "also when it is null": ([b"1", None], None),
    "no header of that name": ([], None),
    "empty": ([b""], None),
    "a word": ([b"soon"], None),
    "no zone": ([b"2023-11-14T22:13:20"], None),
    "no day": ([b"2023-02-30T00:00:00Z"], None),
    "a fraction": ([b"1.5"], None),
    "before the epoch": ([b"-1"], None),
    "a day before the epoch": ([b"1969-12-31T23:59:59Z"], None),
    "after the last year": ([b"253402300800000"], None),
    "too many digits": ([b"9223372036854775808"], None),
    "no text": ([b"\xff\xfe"], None),
}


def test_what_a_header_says(spark: SparkSession) -> None:
    rows = [
        (name.encode(), None, [("other", b"7"), *(("at", v) for v in values), ("at2", b"8")], None)
        for name, (values, _) in HEADERS.items()
    ]
    event_time = event_time_of(spark, EventTime("header", "at"))
    assert event_time is not None
    shown = spark.createDataFrame(rows, COLUMNS).select("key", F.unix_millis(event_time)).collect()
    times_ms = {bytes(key).decode(): event_ms for key, event_ms in shown}
    assert times_ms == {name: event_ms for name, (_, event_ms) in HEADERS.items()}


def test_the_timestamp_needs_no_expression(spark: SparkSession) -> None:
    assert event_time_of(spark, OF_TIMESTAMP) is None


EXPRESSIONS: dict[str, int | None] = {
    "timestamp - INTERVAL 1 HOUR": T0 - HOUR_MS,  # a timestamp
    "try_cast(get_json_object(cast(value AS STRING), '$.at') AS BIGINT)": 1234,  # bigint
    "try_cast(cast(key AS STRING) AS BIGINT)": None,  # unreadable
    "to_timestamp(cast(element_at(headers, 1).value AS STRING))": 5_000,  # a header
    "-1L": None,  # before the epoch
    "9223372036854775807L": None,  # after the last year
}


def test_what_an_expression_says(spark: SparkSession) -> None:
    time = EPOCH + timedelta(milliseconds=T0)
    row = (b"k", b'{"at": 1234}', [("h", b"1970-01-01T00:00:05Z")], time)
    event_times = [event_time_of(spark, EventTime("sql", expression)) for expression in EXPRESSIONS]
    columns = [F.unix_millis(column) for column in event_times if column is not None]
    (shown,) = spark.createDataFrame([row], COLUMNS).select(*columns).collect()
    assert dict(zip(EXPRESSIONS, shown, strict=True)) == EXPRESSIONS


OF_THE_RUN = [
    "TIMESTAMP 'now'",
    'timestamp /* a */ "now"',
    "TIMESTAMP r'now'",
    "TIMESTAMP '\\u006eow'",
    "TIMESTAMP_LTZ 'today UTC'",
    "cast(DATE 'yesterday' AS TIMESTAMP)",
    'cast(" today " AS TIMESTAMP)',
    "cast(concat('to', 'day') AS TIMESTAMP)",
    "to_timestamp('no' || 'w')",
    "to_timestamp(lower('NOW'))",
    "try_to_timestamp('now')",
    "('to' || 'morrow') :: timestamp",
    "cast(cast('now' AS varchar(5)) AS TIMESTAMP)",
    "coalesce(timestamp, 'now')",
    "if(timestamp > 'yesterday', timestamp, null)",
    "cast(to_date(reverse('yadot')) AS TIMESTAMP)",
]
# Spark takes none of these words for a time here.
NOT_OF_THE_RUN = [
    "if(cast(key AS STRING) = 'now', timestamp, null)",
    "try_cast(cast(key AS STRING) AS TIMESTAMP)",
    "try_to_timestamp(cast(key AS STRING))",
    "coalesce(TIMESTAMP '2020-01-01', timestamp)",
    "try_to_timestamp('now', 'yyyy')",
    "try_cast(if(true, 'now', cast(key AS STRING)) AS TIMESTAMP)",
]


@pytest.mark.long
def test_words_of_the_run_in_a_record_are_no_time(spark: SparkSession) -> None:
    event_times = [
        event_time_of(spark, EventTime("sql", expression)) for expression in NOT_OF_THE_RUN
    ]
    rows = spark.createDataFrame([(b"now", None, [], None)], COLUMNS)
    (shown,) = rows.select(*(column for column in event_times if column is not None)).collect()
    assert [at and at.year for at in shown] == [None, None, None, 2020, None, None]


@pytest.mark.long(but="no function")
@pytest.mark.parametrize(
    ("expression", "actual"),
    [
        pytest.param("offset", "[UNRESOLVED_COLUMN", id="a column it may not see"),
        pytest.param("no_such_function(value)", "[UNRESOLVED_ROUTINE]", id="no function"),
        pytest.param("timestamp +", "[PARSE_SYNTAX_ERROR]", id="no expression"),
        pytest.param("cast(value AS STRING)", "one of type string", id="a string"),
        pytest.param("cast(timestamp AS DATE)", "one of type date", id="a date"),
        pytest.param("1", "one of type int", id="an int"),
        pytest.param("max(timestamp)", "WHERE", id="an aggregate"),
        pytest.param("max(timestamp) OVER ()", "indow", id="a window"),
        pytest.param("explode(array(timestamp))", "GENERATOR", id="a generator"),
        pytest.param("cast(rand() * 1000 AS BIGINT)", "not deterministic", id="chance"),
        pytest.param("current_timestamp()", "depends on the time, user or place", id="the clock"),
        pytest.param("timestamp + (now() - timestamp)", "the time, user", id="the clock in it"),
        pytest.param("cast(localtimestamp() AS TIMESTAMP)", "the time, user", id="the local clock"),
        pytest.param("unix_timestamp()", "the time, user", id="seconds of the clock"),
        pytest.param("cast(current_date() AS TIMESTAMP)", "the time, user", id="the day"),
        pytest.param("if(current_user() = 'a', timestamp, null)", "the time, user", id="the user"),
        *(
            pytest.param(text, "text that Spark replaces with a time", id=text)
            for text in OF_THE_RUN
        ),
        pytest.param("(SELECT max(id) FROM range(3))", "a subquery", id="a subquery"),
    ],
)
def test_an_expression_that_is_no_event_time_is_refused(
    spark: SparkSession, expression: str, actual: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        event_time_of(spark, EventTime("sql", expression))
    message = str(refused.value)
    assert message.startswith(
        "expected an expression over key, value, headers and timestamp of type"
    )
    assert f"in ebbtide.event.time=sql:{expression}, found " in message
    assert actual in message.split(", found ")[1]


# -- at ingest


def record(offset: int, at: bytes | None) -> Record:
    headers = [] if at is None else [(b"at", at)]
    return Record(offset, T0 + offset, b"k", b"v", headers)


def text(ms: int) -> bytes:
    return str(ms).encode()


def times_of(log: SmallLog) -> list[int]:
    table = log.spark.table(log.name.records_table).orderBy("offset")
    return [row[0] for row in table.select(F.unix_millis("event_time")).collect()]


def test_a_header_says_it_from_then_on(empty: SmallLog) -> None:
    """Held records keep theirs; unreadable ones fall back, also to a producer's own time."""
    empty.write({0: [write_batch(BatchFields(), [record(0, text(T0 - 500))])]})
    empty.ingest()
    plan = plan_configure(empty.topic(), {EVENT_TIME: "header:at"}, NOW_MS)
    assert "records in the tables keep their event time" in plan.outcome().topic["note"]
    execute_configure(plan)

    stamped = BatchFields(attributes=LOG_APPEND_TIME, max_timestamp_ms=T0 + 900)
    empty.append(
        0,
        write_batch(BatchFields(), [record(1, text(T0 - 400)), record(2, text(T0 - 300))]),
        write_batch(BatchFields(), [record(3, b"soon"), record(4, text(NOW_MS + HOUR_MS + 1))]),
        write_batch(stamped, [record(5, None), record(6, text(T0 + 800))]),
    )
    outcome = empty.ingest()
    assert times_of(empty) == [
        *(T0, T0 - 400, T0 - 300, T0 + 3, NOW_MS + HOUR_MS + 1),
        *(T0 + 5, T0 + 800),
    ]
    assert outcome.partitions[0]["event_times_missing"] == 2
    batches = empty.spark.table(empty.name.batches_table).orderBy("base_offset").collect()
    assert [row["max_event_time_ms"] for row in batches] == [T0, T0 - 300, NOW_MS, T0 + 800]
    assert empty.topic().partitions[0].max_event_time_ms == NOW_MS


@pytest.mark.long
def test_a_batch_without_records_here_says_nothing_of_headers(empty: SmallLog) -> None:
    """Its timestamps would otherwise be event times, and everything older would go."""
    batches = [write_batch(BatchFields(), [record(i, text(1_000 + i))]) for i in (0, 1)]
    empty.write({0: [batches[0]]})
    empty.ingest()
    empty.set({EVENT_TIME: "header:at"})
    for partition in (1, 2):
        empty.write({0: batches, 2: []}, partition=partition)
    checkpoint(empty.source, "log-start-offset-checkpoint", {1: 1, 2: 2})
    empty.ingest()
    states = empty.topic().partitions
    assert [states[p].max_event_time_ms for p in (0, 1, 2)] == [T0, 1_001, -1]


@pytest.mark.long(but="cast(string(value) AS BIGINT)-CAST_INVALID_INPUT")
@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("cast(string(value) AS BIGINT)", "CAST_INVALID_INPUT"),
        ("bigint(assert_true(value IS NULL))", "USER_RAISED_EXCEPTION"),
        ("timestamp_millis(bigint(array(1L)[length(value)]))", "INVALID_ARRAY_INDEX"),
        (
            'from_json(string(value), "a BIGINT", map("mode", "FAILFAST")).a',
            "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION",
        ),
    ],
)
def test_an_expression_that_fails_on_a_record_is_named_without_its_data(
    empty: SmallLog, expression: str, condition: str
) -> None:
    """And nothing has moved: the same ingest goes on once the expression gives null instead."""
    empty.write({0: [write_batch(BatchFields(), [record(0, None)])]})
    empty.ingest()
    empty.set({EVENT_TIME: f"sql:{expression}"})
    empty.append(0, write_batch(BatchFields(), [Record(1, T0 + 1, b"k", b"secret")]))
    before = empty.topic().properties
    with pytest.raises(ConfigurationError) as refused:
        empty.ingest()
    message = str(refused.value)
    assert f"in ebbtide.event.time=sql:{expression}, found that it fails on a record" in message
    assert f"with {condition}. Use functions that return null instead" in message
    assert "secret" not in message
    after = dict(empty.topic().properties)
    assert after.pop(FILES_SLICE)  # the next ingest takes the work over
    assert {n: v for n, v in after.items() if n != CHECKSUM} == {
        n: v for n, v in before.items() if n != CHECKSUM
    }
    empty.set({EVENT_TIME: "sql:try_cast(string(value) AS BIGINT)"})
    empty.ingest()
    assert times_of(empty) == [T0, T0 + 1]


@pytest.mark.long
def test_an_expression_set_by_sql_that_is_none_fails_the_ingest_before_anything_moves(
    empty: SmallLog,
) -> None:
    empty.write({0: [write_batch(BatchFields(), [record(0, None)])]})
    empty.ingest()
    empty.set({EVENT_TIME: "sql:value"})
    before = empty.topic().properties
    empty.append(0, write_batch(BatchFields(), [record(1, None)]))
    with pytest.raises(ConfigurationError, match="found one of type binary"):
        empty.ingest()
    assert times_of(empty) == [T0]
    assert empty.topic().properties == before
    with pytest.raises(ConfigurationError, match="found one of type binary"):
        plan_configure(empty.topic(), {"kafka.retention.ms": "7"}, NOW_MS)
    empty.set({EVENT_TIME: "sql:timestamp - INTERVAL 1 MILLISECOND"})
    empty.ingest()
    assert times_of(empty) == [T0, T0]
    assert parse_config(empty.topic().properties).event_time.source == "sql"
