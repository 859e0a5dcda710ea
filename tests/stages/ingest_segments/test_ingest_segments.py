"""ingest_segments on real tables: what grows is added, whatever stops an ingest in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import (
    CorruptSegmentError,
    ForeignLogError,
    RequestError,
    UnavailableError,
)
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.schema import RUNS_TABLE, create_runs
from ebbtide.iceberg.topics import compare_and_set, current_snapshot, exists, load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import PartitionState, to_properties
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.compression import Codec
from ebbtide.records.limits import MAX_DECOMPRESSED
from ebbtide.records.v2_writer import BatchFields, Record, with_crc, write_batch
from ebbtide.runs.runs_table import JobAttempt, JobOutcome, append_run
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING
from ebbtide.stages.ingest_segments import stage
from ebbtide.stages.ingest_segments.stage import LISTINGS, Source, ingest_segments
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import marker, transactional
from tests.tables.contents import Contents, contents
from tests.tables.fixtures import KilledError, kill
from tests.tables.nights import HOUR_MS, at, ingest, source_of
from tests.tables.partition_log import (
    MODIFIED_MS,
    T0,
    append,
    batch,
    checkpoint,
    damage,
    identify,
    segment_path,
    write_segments,
)

NOW_MS = T0 + HOUR_MS
# Of ten offsets, the last two have no record any more.
CLEANED = batch(0, 8, codec=4, last_offset=9)
ZSTD_BOMB = write_batch(BatchFields(), [Record(1, T0, b"k", bytes(100_000))], Codec.ZSTD)
STEPS = (
    *(Step.CREATE_TOPIC, Step.INGEST_RECORDS, Step.INGEST_BATCHES),
    *(Step.FOLLOW_SETTINGS, Step.INGEST_STATE),
)


def offsets(found: Contents, partition: int = 0) -> list[int]:
    return [row["offset"] for row in found.records if row["partition"] == partition]


def snapshots(spark: SparkSession, name: TopicName) -> list[int | None]:
    return [current_snapshot(spark, table) for table in (name.records_table, name.batches_table)]


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two partitions of ten offsets in two segments each; the second's active one is empty."""
    source = tmp_path / "source"
    write_segments(source, {0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)]})
    write_segments(source, {0: [CLEANED], 10: []}, partition=1)
    return source


def grow(source: Path) -> None:
    """Let partition 0 grow in its active segment and by one more."""
    append(source, 5, batch(10, 2))
    write_segments(source, {12: [batch(12, 3)]})


@pytest.fixture(scope="module")
def unbroken(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """What one ingest makes of a source that has grown already."""
    source = tmp_path_factory.mktemp("unbroken") / "source"
    write_segments(source, {0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)]})
    write_segments(source, {0: [CLEANED], 10: []}, partition=1)
    grow(source)
    ingest(sandbox.session, "unbroken.t", source, NOW_MS)
    return contents(sandbox.session, TopicName("unbroken", "t"))


def test_what_only_a_round_can_change_is_in_the_header_yet(unbroken: Contents) -> None:
    for row in unbroken.batches:
        assert row["header_base_offset"] is None
        assert row["producer_timestamp_ms"] is None


def test_a_source_that_grew_adds_the_new_part_and_nothing_twice(
    spark: SparkSession, name: TopicName, source: Path, unbroken: Contents
) -> None:
    first = ingest(spark, str(name), source, NOW_MS)
    assert len(first.snapshot_ids) == 2
    assert first.partitions[1] == {
        "log_start_offset": 0,
        "low_watermark": 0,
        "log_end_offset": 10,
        "records": 8,
        "batches": 1,
        "bytes": len(CLEANED),
        "segments": 1,
        "skipped": [],
        "accepted_gaps": [],
        "timestamps_in_headers": 0,
        "event_times_missing": 0,
    }
    assert load(spark, name).partitions[1] == PartitionState(
        log_start_offset=0,
        log_end_offset=10,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=((0, MODIFIED_MS), (10, MODIFIED_MS + 10)),
        max_event_time_ms=T0 + 7,
    )

    before, properties = snapshots(spark, name), load(spark, name).properties
    again = ingest(spark, str(name), source, NOW_MS + HOUR_MS)
    assert again.snapshot_ids == []
    assert snapshots(spark, name) == before
    assert load(spark, name).properties == properties
    assert again.partitions[0]["skipped"] == ["2 segments hold nothing new"]

    grow(source)
    grown = ingest(spark, str(name), source, NOW_MS)
    assert [grown.partitions[p]["records"] for p in (0, 1)] == [5, 0]
    assert [grown.partitions[p]["segments"] for p in (0, 1)] == [2, 0]
    assert contents(spark, name) == unbroken


@pytest.mark.parametrize(
    ("step", "has_state"),
    [
        *(pytest.param(step, False, id=f"first-{step}") for step in STEPS),
        # Where the log is from was said by the first.
        *(pytest.param(s, True, id=f"later-{s}") for s in STEPS[1:] if s != Step.FOLLOW_SETTINGS),
    ],
)
def test_an_ingest_killed_anywhere_is_finished_by_the_next_also_of_a_source_that_grew(
    spark: SparkSession,
    name: TopicName,
    source: Path,
    unbroken: Contents,
    kill_at: list[Step],
    step: Step,
    has_state: bool,
) -> None:
    if has_state:
        held = source.parent / "held"
        write_segments(held, {0: [batch(0, 2)]})
        ingest(spark, str(name), held, NOW_MS)
    kill_at.append(step)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, NOW_MS)
    grow(source)
    outcome = ingest(spark, str(name), source, NOW_MS)
    assert contents(spark, name) == unbroken
    assert outcome.partitions[0]["records"] == (13 if has_state else 15)


def test_these_are_all_steps_of_an_ingest(
    spark: SparkSession, name: TopicName, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    monkeypatch.setattr(commits, "before_commit", steps.append)
    ingest(spark, str(name), source, NOW_MS)
    # A catalog is probed once, before its first topic.
    assert tuple(step for step in steps if step is not Step.PROBE) == STEPS
    assert {step for step in Step if step.startswith("ingest")} < set(STEPS)


def test_what_a_killed_ingest_took_from_another_log_is_found_out(
    spark: SparkSession, name: TopicName, source: Path, kill_at: list[Step]
) -> None:
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, NOW_MS)
    write_segments(source, {0: [batch(0, 4), batch(4, 1)]})
    with pytest.raises(
        ForeignLogError, match=r"expected 4 records of the batch \[0, 3\].*delete the rows"
    ):
        ingest(spark, str(name), source, NOW_MS)
    assert contents(spark, name).states == {}


def test_a_view_that_a_killed_create_did_not_reach_is_made(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, NOW_MS)
    for view in (name.table_view, name.v1_view, name.committed_view):
        spark.sql(f"DROP VIEW {view}")
    ingest(spark, str(name), source, NOW_MS)
    assert spark.table(name.committed_view).count() == 18
    assert spark.table(name.v1_view).count() == 18
    assert spark.table(name.table_view).count() == 6


def test_a_plan_creates_nothing(spark: SparkSession, name: TopicName, source: Path) -> None:
    outcome = ingest_segments(spark, name, source_of(source, NOW_MS), is_plan_only=True)
    assert {p: said["records"] for p, said in outcome.partitions.items()} == {0: 10, 1: 8}
    assert not exists(spark, name)


def row_in_runs(spark: SparkSession, name: TopicName, outcome: JobOutcome) -> Row:
    """The row that a job with this outcome writes."""
    now = at(NOW_MS)
    attempt = JobAttempt(
        run_id="run",
        dag=None,
        task=None,
        job="ingest_segments",
        topic=name,
        started=now,
        ended=now,
        now=now,
    )
    create_runs(spark)
    append_run(spark, attempt, outcome, outcome.error)
    (row,) = spark.table(RUNS_TABLE).where(F.col("topic") == str(name)).collect()
    return row


def malformed(first: int) -> bytes:
    """A batch whose CRC is right and whose only record claims to be longer than the batch."""
    data = bytearray(batch(first))
    data[61] = 0x7E
    return with_crc(bytes(data))


def test_damage_stops_its_partition_and_no_other(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    """A wrong CRC shows when files are walked, a malformed record when it is decoded."""
    whole = {0: [batch(0, 5)], 5: [batch(5, 5)], 10: [batch(10)]}
    for partition in (0, 2, 3):
        write_segments(source, whole, partition=partition)
    damage(segment_path(source, 5))
    for partition in (2, 3):
        write_segments(source, {5: [batch(5, 4), malformed(9)]}, partition=partition)

    outcome = ingest_segments(spark, name, source_of(source, NOW_MS))
    found = contents(spark, name)
    assert {p: offsets(found, p)[-1] for p in range(4)} == {0: 4, 1: 7, 2: 4, 3: 4}
    assert isinstance(outcome.error, CorruptSegmentError)
    first, *others = str(outcome.error).split("; /")
    assert first.startswith(f"{segment_path(source, 5)}: expected CRC-32C 0x")
    assert "at position 0, found 0x" in first
    position = len(batch(5, 4))
    for partition, line in zip((2, 3), others, strict=True):
        assert f"/{line}".startswith(
            f"{segment_path(source, 5, partition)}: expected 1 records in "
        )
        assert f"at position {position}, found 0 in 0;" in line
        assert outcome.partitions[partition]["skipped"] == [
            "1 segments behind a file that cannot be read"
        ]

    for partition in (0, 2, 3):
        write_segments(source, whole, partition=partition)
    ingest(spark, str(name), source, NOW_MS)
    repaired = contents(spark, name)
    assert {p: offsets(repaired, p) for p in (0, 2, 3)} == {p: [*range(11)] for p in (0, 2, 3)}
    assert repaired.states[0].log_end_offset == 11


def old_bomb() -> bytes:
    """A batch of magic 1, which only decompressing tells the records of."""
    builder = LegacyRecordBatchBuilder(1, int(Codec.GZIP), 1 << 20)
    builder.append(0, T0, b"k", bytes(100_000))
    return (1).to_bytes(8, "big") + bytes(builder.build())[8:]


@pytest.fixture(params=["in threads", "in tasks"])
def anywhere(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Wherever segments are worked on."""
    if request.param == "in tasks":
        spark.conf.set(DRIVER_ROWS_SETTING, 0)
    yield
    spark.conf.unset(DRIVER_ROWS_SETTING)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("bomb", "settings"),
    [
        pytest.param(ZSTD_BOMB, {}, id="shown by its records"),
        pytest.param(ZSTD_BOMB, {"ebbtide.event.time": "header:at"}, id="shown by rows of Spark"),
        pytest.param(old_bomb(), {}, id="shown by the walk"),
    ],
)
def test_a_batch_that_is_too_large_in_memory_stops_its_partition_and_no_other(
    spark: SparkSession, name: TopicName, tmp_path: Path, bomb: bytes, settings: dict[str, str]
) -> None:
    source = write_segments(tmp_path / "source", {0: [batch(0)], 1: [bomb]})
    write_segments(source, {0: [batch(0, 2, codec=Codec.ZSTD)]}, partition=1)
    limited = {MAX_DECOMPRESSED: "1000", **settings}
    taken = replace(source_of(source, NOW_MS), settings=limited)
    outcome = ingest_segments(spark, name, taken)
    found = contents(spark, name)
    assert [offsets(found, partition) for partition in (0, 1)] == [[0], [0, 1]]
    assert row_in_runs(spark, name, outcome)["error_class"] == "OversizedBatchError"
    assert str(outcome.error).startswith(
        f"{segment_path(source, 1)}: expected a batch of at most 1000 bytes decompressed at "
        f"position 0, found more; set {MAX_DECOMPRESSED} higher"
    )

    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: {MAX_DECOMPRESSED: None})
    ingest(spark, str(name), source, NOW_MS)
    assert offsets(contents(spark, name)) == [0, 1]


class TestSlices:
    """One new file a slice: what many batches do, whose rows the driver cannot hold at once."""

    @pytest.fixture(autouse=True)
    def of_one_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stage, "MAX_BATCHES", 1)
        monkeypatch.setattr(stage, "FIRST_WALK_BYTES", 1)

    def test_leave_the_same_as_one(
        self, spark: SparkSession, name: TopicName, source: Path, unbroken: Contents
    ) -> None:
        grow(source)
        outcome = ingest(spark, str(name), source, NOW_MS)
        assert contents(spark, name) == unbroken
        assert len(outcome.snapshot_ids) == 2 * 4
        numbers = outcome.partitions[0]
        assert [numbers[n] for n in ("records", "batches", "segments")] == [15, 5, 3]
        assert numbers["log_end_offset"] == 15

    @pytest.mark.parametrize("commit", [4, 5, 6, 7, 12])
    def test_killed_in_a_later_one_are_finished_by_the_next_ingest(
        self,
        spark: SparkSession,
        name: TopicName,
        source: Path,
        unbroken: Contents,
        commit: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        steps: list[Step] = []

        def stop(step: Step) -> None:
            steps.append(step)
            if len(steps) == commit + 1:
                kill(step)

        monkeypatch.setattr(commits, "before_commit", stop)
        grow(source)
        with pytest.raises(KilledError):
            ingest(spark, str(name), source, NOW_MS)
        ingest(spark, str(name), source, NOW_MS)
        assert contents(spark, name) == unbroken

    def test_end_where_a_file_is_damaged_or_the_high_watermark_lies(
        self, spark: SparkSession, name: TopicName, source: Path
    ) -> None:
        files = {0: [batch(0, 5)], 5: [batch(5, 5)], 10: [batch(10)]}
        for partition in (0, 2, 3):
            write_segments(source, files, partition=partition)
        damage(segment_path(source, 5))
        checkpoint(source, "replication-offset-checkpoint", {0: 11, 1: 10, 2: 7, 3: 11})
        outcome = ingest_segments(spark, name, source_of(source, NOW_MS))
        found = contents(spark, name)
        assert {p: offsets(found, p)[-1] for p in range(4)} == {0: 4, 1: 7, 2: 4, 3: 10}
        assert str(outcome.error).count("expected CRC-32C") == 1


class TestAFileThatVanishes:
    def test_before_it_is_walked_is_listed_again(
        self, spark: SparkSession, name: TopicName, source: Path
    ) -> None:
        listed = source_of(source, NOW_MS)
        segment_path(source, 0).unlink()
        assert ingest_segments(spark, name, listed).error is None
        found = contents(spark, name)
        assert offsets(found) == [5, 6, 7, 8, 9]
        assert found.states[0].log_start_offset == 5

    def test_between_walking_and_reading_too(
        self,
        spark: SparkSession,
        name: TopicName,
        source: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        walk_files = stage.walk_files

        def walk_and_remove(*arguments: Any) -> Any:
            walked = walk_files(*arguments)
            segment_path(source, 0).unlink(missing_ok=True)
            return walked

        monkeypatch.setattr(stage, "walk_files", walk_and_remove)
        assert ingest_segments(spark, name, source_of(source, NOW_MS)).error is None
        assert offsets(contents(spark, name)) == [5, 6, 7, 8, 9]

    def test_for_good_is_given_up_as_transient(
        self,
        spark: SparkSession,
        name: TopicName,
        source: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        listings: list[Source] = []

        def list_the_same(listed: Source) -> Source:
            listings.append(listed)
            return listed

        monkeypatch.setattr(Source, "listed_again", list_the_same)
        listed = source_of(source, NOW_MS)
        path = segment_path(source, 0)
        path.unlink()
        with pytest.raises(UnavailableError, match=f"^{path}: expected the file that was listed"):
            ingest_segments(spark, name, listed)
        assert len(listings) == LISTINGS - 1
        assert UnavailableError.transient


def test_a_new_partition_begins_where_its_log_does(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    """Records below the log start offset are not seen; the batches of their segment are there."""
    ingest(spark, str(name), source, NOW_MS)
    write_segments(source, {0: [batch(0, 2), batch(2, 2), batch(4, 2)], 6: []}, partition=2)
    checkpoint(source, "log-start-offset-checkpoint", {2: 3})
    checkpoint(source, "replication-offset-checkpoint", {0: 10, 1: 10, 2: 6})
    outcome = ingest(spark, str(name), source, NOW_MS)
    assert [outcome.partitions[p]["records"] for p in range(3)] == [0, 0, 3]
    found = contents(spark, name)
    assert offsets(found, 2) == [3, 4, 5]
    batches = [row for row in found.batches if row["partition"] == 2]
    assert [(row["base_offset"], row["max_event_time_ms"] - T0) for row in batches] == [
        (0, 1),
        (2, 3),
        (4, 5),
    ]
    assert found.states[2].log_start_offset == 3
    assert found.states[2].max_event_time_ms == T0 + 5


def test_times_are_kept_as_the_log_has_them(
    spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
    """The broker's clock beside the producer's, one in the future, and two no column holds."""
    stamped = BatchFields(attributes=LOG_APPEND_TIME, max_timestamp_ms=T0 + 70)
    future_ms = NOW_MS + HOUR_MS + 1
    batches = [
        write_batch(stamped, [Record(0, T0 - 5, None, b"v"), Record(1, T0 - 9, None, b"v")]),
        write_batch(BatchFields(), [Record(2, NOW_MS + HOUR_MS, None, b"v")]),
        write_batch(BatchFields(), [Record(3, future_ms, None, b"v")]),
        write_batch(BatchFields(), [Record(i, 2**62, None, b"v") for i in (4, 5)]),
        write_batch(BatchFields(), [Record(6, -1, None, b"v", [(b"h", None)])]),
    ]
    write_segments(tmp_path, {0: batches})
    outcome = ingest(spark, str(name), tmp_path, NOW_MS)
    rows = (
        spark.table(name.records_table)
        .selectExpr(
            "unix_millis(timestamp)", "unix_millis(event_time)", "unix_millis(append_time)",
            "transform(headers, h -> concat(h.key, '=', coalesce(string(h.value), '')))",
        )
        .orderBy("offset")
        .collect()
    )  # fmt: skip
    kept = [f"ebbtide.timestamp={2**62}"]
    assert [tuple(row) for row in rows] == [
        (T0 + 70, T0 - 5, T0 + 70, []),
        (T0 + 70, T0 - 9, T0 + 70, []),
        (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, NOW_MS, []),
        (future_ms, future_ms, NOW_MS, []),
        (None, None, NOW_MS, kept),
        (None, None, NOW_MS, kept),
        (None, None, NOW_MS, ["h="]),
    ]
    assert outcome.partitions[0]["timestamps_in_headers"] == 2
    found = contents(spark, name)
    times = [row["max_event_time_ms"] for row in found.batches]
    assert times == [T0 - 5, NOW_MS + HOUR_MS, NOW_MS, -1, -1]
    assert [row["append_time_ms"] for row in found.batches] == [T0 + 70, *[NOW_MS] * 4]
    assert found.states[0].max_event_time_ms == NOW_MS + HOUR_MS


def test_a_transaction_that_is_open_between_two_ingests(
    spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
    batches = [
        batch(0),
        transactional(1, "a", producer=7, at_ms=T0),
        transactional(2, "b", producer=8, at_ms=T0),
        batch(3),
    ]
    write_segments(tmp_path, {0: batches})
    ingest(spark, str(name), tmp_path, NOW_MS)
    assert committed(spark, name) == [0]
    ended = [marker(4, "ABORT", producer=7, at_ms=T0), marker(5, "COMMIT", producer=8, at_ms=T0)]
    append(tmp_path, 0, *ended)
    ingest(spark, str(name), tmp_path, NOW_MS)
    found = contents(spark, name)
    firsts = {row["control_type"]: row["txn_first_offset"] for row in found.batches[4:]}
    assert firsts == {"ABORT": 1, "COMMIT": 2}
    assert committed(spark, name) == [0, 2, 3]
    assert offsets(found) == [0, 1, 2, 3]


def committed(spark: SparkSession, name: TopicName) -> list[int]:
    rows = spark.table(name.committed_view).orderBy("offset").collect()
    return [row["offset"] for row in rows]


class TestTopicId:
    @pytest.fixture
    def identified(self, spark: SparkSession, name: TopicName, source: Path) -> Iterator[Path]:
        """A source that named no id at first and then one."""
        ingest(spark, str(name), source, NOW_MS)
        identify(source, "first-id")
        append(source, 5, batch(10))
        ingest(spark, str(name), source, NOW_MS)
        return source

    def test_the_first_that_a_source_names_is_kept_and_another_refused(
        self, spark: SparkSession, name: TopicName, identified: Path
    ) -> None:
        assert load(spark, name).config.topic_id == "first-id"
        identify(identified, "second-id")
        append(identified, 5, batch(11))
        with pytest.raises(ForeignLogError, match=r"expected topic id first-id .* found second-id"):
            ingest(spark, str(name), identified, NOW_MS)
        assert load(spark, name).partitions[0].log_end_offset == 11

        identify(identified, "third-id", partition=1)
        with pytest.raises(ForeignLogError, match="found second-id, third-id: partitions of diff"):
            ingest(spark, str(name), identified, NOW_MS)


def test_the_topic_remembers_its_first_source_and_its_owner_may_name_another(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, NOW_MS)
    assert load(spark, name).config.upstream == ("segments", str(source))
    topic = load(spark, name)
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: {"ebbtide.source": "kafka:main"})
    grow(source)
    ingest(spark, str(name), source, NOW_MS)
    assert load(spark, name).config.upstream == ("kafka", "main")


def test_a_source_that_goes_on_where_records_were_appended_directly_is_refused(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, NOW_MS)
    state = load(spark, name).partitions[0]
    appended = to_properties(
        0, state.moved(log_end_offset=12, first_appended_offset=state.log_end_offset)
    )
    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: appended)
    ingest(spark, str(name), source, NOW_MS)  # it ends where they begin
    grow(source)
    with pytest.raises(ForeignLogError, match=r"t-0 to end at or before offset 10, from which on"):
        ingest(spark, str(name), source, NOW_MS)
    assert load(spark, name).partitions[0].log_end_offset == 12


def test_a_name_like_a_views_is_refused(spark: SparkSession, source: Path) -> None:
    for view in ("t__committed", "t__v1", "t__table"):
        with pytest.raises(RequestError, match="does not end like a view's"):
            ingest_segments(spark, TopicName("any", view), source_of(source, NOW_MS))


def test_kafkas_own_topics_are_not_archived(source: Path) -> None:
    write_segments(source, {0: [batch(0)]}, topic="__consumer_offsets")
    listed = source_of(source, NOW_MS)
    assert listed.topics() == ["t"]
    assert len(listed.of(TopicName("any", "__consumer_offsets"))) == 1
