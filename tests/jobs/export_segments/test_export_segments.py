"""Exports of little logs: each hard case as Kafka's classes read it, refusals, and kills."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import CommitConflictError, RequestError, SafetyError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs import export_segments
from ebbtide.jobs.export_segments import Export, plan_export
from ebbtide.records.log_directory import list_log_directory
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.records.segment_reader import walk_segment
from ebbtide.settings.names import TopicName
from tests.jobs.export_segments.exports import assert_same, exact, export, kafkas_states
from tests.kafka.oracle import LogState, Round, SourceLog, run_oracle
from tests.lake_sandbox import LakeSandbox
from tests.records.files.test_segment_writer import deltas
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import view_of_kafka, view_of_table
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, clean, expire, ingest, mark
from tests.tables.partition_log import batch, checkpoint, identify, write_segments

NIGHT_MS = 1_000 * DAY_MS
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
GOLDEN = Path(__file__).parents[2] / "records" / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir())
FIRST_FILE = f"{0:020}.log"
FAR_MS = 2**62  # in no column of microseconds
# What only magic 2 has, so that Kafka tells it of the export alone.
OF_V2 = ("magic", "attributes", "base_timestamp_ms", "crc", "record_count", "size_bytes")
# Two segments, the second with a tombstone, and an active one without a batch.
MESSAGES = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    [Message("a", "2"), Message("b", None)],
    [],
]
TOPIC_ID = "Or5adsquR-mqGH_xuocipw"


@pytest.fixture
def topic(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A small compacted topic after a round; its tombstone waits for its horizon."""
    second = len(batch_of(MESSAGES[1], 3))
    config = {**COMPACT, "max.message.bytes": str(second)}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, f"{cluster}.t")
    clean(sandbox.session, f"{cluster}.t", NIGHT_MS)
    return TopicName(cluster, "t")


def segment_file(directory: Path, base: int, partition: int = 0) -> Path:
    return directory / f"t-{partition}" / f"{base:020}.log"


def batch_bytes(path: Path, base_offset: int) -> bytes:
    """The bytes of one batch of a file."""
    rows = walk_segment(str(path), max_batch_bytes=1_000_000).batches.to_pylist()
    (row,) = [row for row in rows if row["base_offset"] == base_offset]
    return path.read_bytes()[row["position"] : row["position"] + row["size_bytes"]]


@pytest.mark.long
def test_a_horizon_makes_deltas_negative_and_may_make_a_batch_too_large(
    sandbox: LakeSandbox, topic: TopicName, kafka_jars: Path, tmp_path: Path
) -> None:
    view = view_of_table(sandbox.session, topic, 0)
    assert view.segments == [(0, FIRST_MS), (5, FIRST_MS)]  # the round merged two
    outcome = export(sandbox.session, topic, tmp_path / "out")
    assert_same(view_of_kafka(kafkas_states(tmp_path / "out", kafka_jars)["t-0"]), view)
    stamped = batch_bytes(segment_file(tmp_path / "out", 0), 3)
    assert deltas(stamped) == [FIRST_MS - NIGHT_MS - DAY_MS] * 2
    limit = load(sandbox.session, topic).config.max_message_bytes
    assert len(stamped) > limit
    assert outcome.partitions[0]["batches_above_max_message_bytes"] == 1
    assert outcome.partitions[0]["largest_batch_bytes"] == len(stamped)
    assert segment_file(tmp_path / "out", 5).stat().st_size == 0


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of what Kafka's classes wrote, all formats, a topic each."""
    directory = tmp_path_factory.mktemp("golden")
    for case in CASES:
        write_log(directory, case, [[]], COMPACT)
        shutil.copy(GOLDEN / case / FIRST_FILE, directory / f"{case}-0" / FIRST_FILE)
    write_log(directory, "far", [[]], COMPACT)
    far = [Record(0, FAR_MS, b"k", b"v", [(b"h", None)]), Record(1, -FAR_MS, b"k", None)]
    (directory / "far-0" / FIRST_FILE).write_bytes(write_batch(BatchFields(), far))
    return directory


@pytest.fixture(scope="module")
def before(golden: Path, kafka_jars: Path) -> dict[str, LogState]:
    return kafkas_states(golden, kafka_jars)


@pytest.mark.long(but="cleaned")
@pytest.mark.parametrize("case", [*CASES, "far"])
def test_what_kafkas_classes_wrote_they_read_again(
    sandbox: LakeSandbox,
    golden: Path,
    before: dict[str, LogState],
    kafka_jars: Path,
    tmp_path: Path,
    case: str,
) -> None:
    name = TopicName("golden", case)
    ingest(sandbox.session, str(name), golden, NIGHT_MS)
    outcome = export(sandbox.session, name, tmp_path / "out")
    expected = before[f"{case}-0"]
    state = kafkas_states(tmp_path / "out", kafka_jars)[f"{case}-0"]
    assert state.records == expected.records
    assert (state.producers, state.segments[0].base_offset) == (expected.producers, 0)
    assert state.last_stable_offset == expected.last_stable_offset
    converted = sum(batch.magic < 2 for batch in expected.batches)
    assert outcome.partitions[0]["converted_batches"] == converted
    for ours, theirs in zip(state.batches, expected.batches, strict=True):
        assert ours.magic == 2
        but: tuple[str, ...] = OF_V2 if theirs.magic < 2 else ()
        but += ("timestamp_type",) if theirs.magic == 0 else ()  # it has none
        but += ("size_bytes", "crc") if theirs.compression != "none" else ()
        unset: dict[str, Any] = dict.fromkeys(but)
        assert replace(ours, **unset) == replace(theirs, **unset)


@pytest.mark.long
@pytest.mark.parametrize("case", ["magic-0", "magic-1"])
def test_old_formats_that_a_round_converted_are_what_kafkas_round_leaves(
    sandbox: LakeSandbox, kafka_jars: Path, tmp_path: Path, case: str
) -> None:
    name = TopicName("converted", case)
    source = write_log(tmp_path / "log", case, [[]], COMPACT)
    segments = {0: [(GOLDEN / case / FIRST_FILE).read_bytes()], 500: [batch(500)]}
    write_segments(source, segments, topic=case)
    ingest(sandbox.session, str(name), source, NIGHT_MS)
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    export(sandbox.session, name, tmp_path / "out")
    state = kafkas_states(tmp_path / "out", kafka_jars)[f"{case}-0"]
    rounds = [Round(now_ms=NIGHT_MS)]
    expected = kafkas_states(source, kafka_jars, rounds)[f"{case}-0"]
    assert expected.picked == "dirty"
    assert state.records == expected.records
    assert state.segments[0].base_offset == expected.segments[0].base_offset
    assert [exact(b) for b in view_of_kafka(state).batches] == [
        exact(b) for b in view_of_kafka(expected).batches
    ]


def test_header_keys_that_are_not_utf8_are_shown_as_kafka_shows_them_and_come_back(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path
) -> None:
    keys = [b"\xff", b"caf\xe9", b"\xc3", b"\xe2\x82x", b"fine", b"\xf0\x9f\x98"]
    records = [Record(i, 5, b"k", b"v", [(b"h", None), (key, b"w")]) for i, key in enumerate(keys)]
    data = write_batch(BatchFields(), records)
    source = write_log(tmp_path / "log", "t", [[]], COMPACT)
    write_segments(source, {0: [data]})
    name = TopicName(cluster, "t")
    ingest(sandbox.session, str(name), source, NIGHT_MS)
    export(sandbox.session, name, tmp_path / "out")
    assert segment_file(tmp_path / "out", 0).read_bytes() == data
    served = kafkas_states(tmp_path / "out", kafka_jars)["t-0"].records
    held = view_of_table(sandbox.session, name, 0).records
    shown = [dict(headers) for *_, headers in held]
    assert [list(by_key)[1] for by_key in shown] == [record.headers[1][0] for record in served]


def test_times_that_no_column_holds_outlive_a_round(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path
) -> None:
    times = [5, 2**63 - 1, 7, FAR_MS, FAR_MS + 1, 8, 2**63 - 1, 2**63 - 1, 9]
    keys = b"a,b,a,c,d,a,e,f,a".split(b",")
    records = [
        Record(offset, at_ms, key, None if key == b"e" else b"v")
        for offset, (at_ms, key) in enumerate(zip(times, keys, strict=True))
    ]
    parts = [records[0:3], records[3:6], records[6:9]]
    batches = [write_batch(BatchFields(), part) for part in parts]
    source = write_log(tmp_path / "log", "t", [[]], COMPACT)
    write_segments(source, {0: batches, 9: [batch(9)]})
    name = TopicName(cluster, "t")
    ingest(sandbox.session, str(name), source, NIGHT_MS)
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    export(sandbox.session, name, tmp_path / "out")
    state = kafkas_states(tmp_path / "out", kafka_jars)["t-0"]
    log = SourceLog(directory=source / "t-0", config=COMPACT, rounds=[Round(now_ms=NIGHT_MS)])
    (result,) = run_oracle([log], kafka_jars)
    expected = result.rounds[-1]
    assert state.records == expected.records
    assert state.batches == expected.batches
    assert state.segments[0].largest_timestamp_ms == expected.segments[0].largest_timestamp_ms


@pytest.mark.long
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_below_the_log_start_offset_only_headers_are_left(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path, policy: str
) -> None:
    name = TopicName(cluster, "t")
    batches = [batch(0, 4, codec=1), batch(4, 4, codec=3), batch(8, 2)]
    source = write_log(tmp_path / "log", "t", [[]], {"cleanup.policy": policy})
    write_segments(source, {0: batches, 10: [batch(10)]})
    checkpoint(source, "log-start-offset-checkpoint", {0: 6})
    ingest(sandbox.session, str(name), source, NIGHT_MS)
    outcome = export(sandbox.session, name, tmp_path / "out")
    assert outcome.partitions[0]["records"] == 5
    state = kafkas_states(tmp_path / "out", kafka_jars)["t-0"]
    assert (state.log_start_offset, state.log_end_offset) == (6, 11)
    assert [record.offset for record in state.records] == [6, 7, 8, 9, 10]
    counts = [(b.base_offset, b.last_offset, b.record_count) for b in state.batches]
    assert counts == [(0, 3, 0), (4, 7, 2), (8, 9, 2), (10, 10, 1)]
    assert [b.compression for b in state.batches] == ["none", "lz4", "none", "none"]

    again = TopicName(f"{cluster}_again"[-60:], "t")
    ingest(sandbox.session, str(again), tmp_path / "out", NIGHT_MS)
    view, expected = (view_of_table(sandbox.session, topic_name, 0) for topic_name in (again, name))
    assert view.records == expected.records
    assert view.log_start_offset == expected.log_start_offset
    assert view.segments == expected.segments


def test_a_log_that_retention_emptied_begins_where_it_ended(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path
) -> None:
    config = {"cleanup.policy": "delete", "retention.ms": str(DAY_MS)}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    expire(sandbox.session, f"{cluster}.t", NIGHT_MS)
    name = TopicName(cluster, "t")
    export(sandbox.session, name, tmp_path / "out")
    state = kafkas_states(tmp_path / "out", kafka_jars)["t-0"]
    assert_same(view_of_kafka(state), view_of_table(sandbox.session, name, 0))
    assert (state.log_start_offset, state.log_end_offset, state.batches) == (5, 5, ())


def test_what_lies_beside_the_segments(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> None:
    source = write_log(tmp_path / "log", "t", [[]], {"cleanup.policy": "delete"})
    epochs = [2, 2, 5, 4, 5, 7]
    batches = [batch(i, leader_epoch=epoch) for i, epoch in enumerate(epochs)]
    write_segments(source, {0: batches[:2], 2: batches[2:]})
    write_segments(source, {0: [batch(0)]}, partition=1)
    write_segments(source, {0: [batch(0)]}, partition=2)
    for partition in range(3):
        identify(source, TOPIC_ID, partition=partition)
    checkpoint(source, "log-start-offset-checkpoint", {0: 3})
    ingest(sandbox.session, f"{cluster}.t", source, NIGHT_MS)
    out = tmp_path / "out"
    outcome = export(sandbox.session, TopicName(cluster, "t"), out, 0, 2)
    assert sorted(outcome.partitions) == [0, 2]
    assert (out / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n5 3\n7 5\n"
    assert (out / "t-2" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert (out / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"
    assert (out / "replication-offset-checkpoint").read_text() == "0\n2\nt 0 6\nt 2 1\n"
    identity = (out / "t-0" / "partition.metadata").read_text()
    assert identity == f"version: 0\ntopic_id: {TOPIC_ID}"
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["t-0", "t-2"]
    for directory in list_log_directory(str(out)):
        assert directory.topic_id == TOPIC_ID
        assert directory.high_watermark == outcome.partitions[directory.partition]["log_end_offset"]


@pytest.mark.parametrize("step", [Step.EXPORT_CHECKPOINTS, Step.EXPORT_TARGET])
def test_a_killed_export_leaves_no_target_and_is_begun_anew(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path, kill_at: list[Step], step: Step
) -> None:
    export(sandbox.session, topic, tmp_path / "whole")
    kill_at.append(step)
    with pytest.raises(KilledError):
        export(sandbox.session, topic, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    segment_file(tmp_path / "out.unfinished", 99).write_bytes(b"of an older state")
    export(sandbox.session, topic, tmp_path / "out")
    assert not (tmp_path / "out.unfinished").exists()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_run_that_had_finished_finds_its_target_whole(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path
) -> None:
    first = export(sandbox.session, topic, tmp_path / "out")
    inode = segment_file(tmp_path / "out", 0).stat().st_ino
    again = export(sandbox.session, topic, tmp_path / "out")
    assert again.partitions == first.partitions
    assert segment_file(tmp_path / "out", 0).stat().st_ino == inode
    with pytest.raises(RequestError, match="expected a target that is empty or does not exist"):
        export(sandbox.session, topic, tmp_path / "out", run_id="another")


def test_a_target_that_holds_something_is_refused(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path
) -> None:
    (tmp_path / "held" / "u-0").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, content in (("held", "1 entries, such as u-0"), ("file", "a file")):
        message = (
            f"expected a target that is empty or does not exist, found {content} in "
            f"{tmp_path / name}. Name another directory, or empty this one"
        )
        with pytest.raises(RequestError) as refusal:
            export(sandbox.session, topic, tmp_path / name)
        assert str(refusal.value) == message
    export(sandbox.session, topic, tmp_path / "empty")
    assert segment_file(tmp_path / "empty", 0).exists()


def test_what_cannot_be_renamed_as_a_whole_is_refused(
    sandbox: LakeSandbox, topic: TopicName
) -> None:
    wanted = Export("s3://bucket/log?region=eu-central-1", "run")
    with pytest.raises(RequestError, match="renames a directory in one step, found s3"):
        plan_export(load(sandbox.session, topic), wanted)


def test_a_plan_writes_nothing(sandbox: LakeSandbox, topic: TopicName, tmp_path: Path) -> None:
    plan = plan_export(load(sandbox.session, topic), Export(str(tmp_path / "out"), "run"))
    assert plan.outcome().partitions == {
        0: {"log_start_offset": 0, "low_watermark": 0, "log_end_offset": 5, "segments": 2}
    }
    assert not list(tmp_path.glob("out*"))


def test_a_partition_that_is_not_there_is_refused(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=r"among \[0\], found \[3\]$"):
        export(sandbox.session, topic, tmp_path / "out", 0, 3)
    assert not list(tmp_path.glob("out*"))


def test_records_that_another_deleted_are_missed(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path
) -> None:
    sandbox.session.sql(f"DELETE FROM {topic.records_table} WHERE offset = 3")
    with pytest.raises(SafetyError) as refusal:
        export(sandbox.session, topic, tmp_path / "out")
    assert str(refusal.value) == (
        "expected 2 records in the batch [3, 4] of t-0, found 1: another tool added or deleted "
        "rows. Nothing was exported. Roll the table back to a snapshot from before that"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_topic_that_moves_while_it_is_planned_is_read_again(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path
) -> None:
    seen = load(sandbox.session, topic)
    clean(sandbox.session, str(topic), NIGHT_MS + 2 * DAY_MS)
    with pytest.raises(CommitConflictError, match="found one by another job"):
        plan_export(seen, Export(str(tmp_path / "out"), "run"))


def test_a_file_that_cannot_be_written_may_be_tried_again(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path
) -> None:
    plan = plan_export(load(sandbox.session, topic), Export(str(tmp_path / "out"), "run"))
    with pytest.raises(UnavailableError, match="expected a writable file and readable"):
        list(export_segments.write_segments(sandbox.session, plan.segments))
