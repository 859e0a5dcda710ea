"""Each job, killed with -9 before its last commit by a real process, and run again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.ledger.own_tables import RUNS
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import KILLED, submit
from tests.tables.adopted import Record, append, spark_table
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, ingest, mark, set_properties

NIGHT_MS = FIRST_MS + 10 * DAY_MS
CONFIG = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.bytes": "157",
}
MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2"), Message("c", None)],
    [Message("d", "1"), Message("e", "1")],
]
REQUEST = '{{"topics":[{{"topic":"{topic}","partitions":[{{"partition":0,"offset":3}}]}}]}}'


RECORDS = sum(map(len, MESSAGES))


def rows_removed(sandbox: LakeSandbox, name: TopicName) -> int:
    """The records that the rows in `runs` say were removed from the topic."""
    rows = sandbox.session.table(RUNS.in_catalog()).where(f"topic = '{name}'").collect()
    return sum(row["rows_removed"] for row in rows)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> LakeSandbox:
    return LakeSandbox(tmp_path_factory.mktemp("lake") / "home")


@pytest.mark.parametrize(
    ("job", "step", "left"),
    [
        pytest.param(
            "mark_tombstones", Step.MARK_STATE, [0, 1, 2, 3, 4, 5], marks=pytest.mark.long
        ),
        pytest.param("clean_log", Step.ROUND_BATCHES, [1, 2, 3, 4, 5], marks=pytest.mark.long),
        ("expire_segments", Step.TRUNCATE_BATCHES, [2, 3, 4, 5]),
        pytest.param("delete_records", Step.TRUNCATE_RECORDS, [3, 4, 5], marks=pytest.mark.long),
        pytest.param(
            "expire_snapshots", Step.EXPIRE_SNAPSHOTS, [1, 2, 3, 4, 5], marks=pytest.mark.long
        ),
        pytest.param(
            "configure_topic", Step.CONFIGURE_TOPIC, [0, 1, 2, 3, 4, 5], marks=pytest.mark.long
        ),
    ],
)
def test_a_killed_job_is_finished_by_the_next(
    sandbox: LakeSandbox, tmp_path: Path, job: str, step: Step, left: list[int]
) -> None:
    name = TopicName(job, "t")
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    if job in ("clean_log", "expire_snapshots"):
        mark(sandbox.session, str(name))
    if job == "expire_snapshots":
        clean(sandbox.session, str(name), NIGHT_MS)
        set_properties(sandbox.session, str(name), {"history.expire.max-snapshot-age-ms": "0"})
    arguments = ["--topic", str(name)]
    if job == "delete_records":
        arguments = ["--request", REQUEST.format(topic=name)]
    if job == "configure_topic":
        arguments += ["--set", "kafka.retention.ms=7"]
    arguments += ["--now", at(NIGHT_MS).isoformat()]

    killed = submit(sandbox, job, *arguments, kill_at=step)
    assert killed.returncode == KILLED, killed.stderr[-2000:]
    done = submit(sandbox, job, *arguments)

    assert done.returncode == 0, done.stderr[-2000:]
    view = view_of_table(sandbox.session, name, 0)
    assert offsets(view) == left
    assert sum(batch["record_count"] for batch in view.batches) >= len(left)
    assert "ebbtide.round" not in load(sandbox.session, name).properties
    if job != "expire_snapshots":  # its records left without a job
        assert rows_removed(sandbox, name) == RECORDS - len(left)
    if job == "configure_topic":
        assert load(sandbox.session, name).config.retention_ms == 7


@pytest.mark.long
def test_a_killed_quarantine_is_finished_by_the_next(sandbox: LakeSandbox, tmp_path: Path) -> None:
    """Of records that were tombstones before, so that they are to be marked again."""
    name = TopicName("quarantine", "t")
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    topic = load(sandbox.session, name)
    explicit = {"ebbtide.tombstone.explicit": "true"}
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: explicit)
    arguments = ["--topic", str(name), "--from-offset", "0:2", "--now", at(NIGHT_MS).isoformat()]

    killed = submit(sandbox, "mark_tombstones", *arguments, kill_at=Step.MARK_RECORDS)
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    assert "1 records have a null value but no tombstone mark" in killed.stdout
    done = submit(sandbox, "mark_tombstones", *arguments)

    assert done.returncode == 0, done.stdout[-2000:]
    held = sandbox.session.table(name.quarantine_table).select("offset", "run_id").collect()
    assert [tuple(row) for row in held] == [(3, "test")]
    assert offsets(view_of_table(sandbox.session, name, 0)) == [0, 1, 2, 4, 5]
    assert rows_removed(sandbox, name) == 1
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 6


@pytest.mark.long
def test_a_killed_undo_is_finished_by_the_next(sandbox: LakeSandbox, tmp_path: Path) -> None:
    name = TopicName("undo_run", "t")
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    before = view_of_table(sandbox.session, name, 0)
    now = ("--now", at(NIGHT_MS).isoformat())
    assert (
        submit(sandbox, "delete_records", "--request", REQUEST.format(topic=name), *now).returncode
        == 0
    )
    assert offsets(view_of_table(sandbox.session, name, 0)) == [3, 4, 5]
    arguments = ["--topic", str(name), "--run", "test", *now]

    killed = submit(sandbox, "undo_run", *arguments, kill_at=Step.UNDO_STATE)
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    done = submit(sandbox, "undo_run", *arguments)

    assert done.returncode == 0, done.stdout[-2000:]
    assert view_of_table(sandbox.session, name, 0) == before
    assert "ebbtide.undo" not in load(sandbox.session, name).properties
    assert rows_removed(sandbox, name) == 3  # by delete_records


@pytest.mark.long
def test_a_killed_copy_is_finished_by_the_next(sandbox: LakeSandbox) -> None:
    """The table grows in between; the second run knows it without being told."""
    name, source = TopicName("ingest_table", "t"), "raw.t"
    spark_table(sandbox.session, source)
    append(sandbox.session, source, [Record(0, "a"), Record(1, "b", None)])
    arguments = ["--topic", str(name), "--now", at(NIGHT_MS).isoformat()]

    killed = submit(
        sandbox, "ingest_table", *arguments, "--source", source, kill_at=Step.INGEST_BATCHES
    )
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    append(sandbox.session, source, [Record(2, "c"), Record(1, "b", None)])
    done = submit(sandbox, "ingest_table", *arguments)

    assert done.returncode == 0, done.stdout[-2000:]
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [(row["offset"], bytes(row["key"])) for row in rows] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert load(sandbox.session, name).partitions[0].log_end_offset == 3
    assert "ebbtide.copied.slice" not in load(sandbox.session, name).properties


@pytest.mark.long
def test_a_killed_replication_is_finished_by_the_next(sandbox: LakeSandbox, tmp_path: Path) -> None:
    name = TopicName("replicate_log", "t")
    sandbox.add_catalog("other")
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    topic = load(sandbox.session, name)
    replicas = {"ebbtide.replicas": "other.copy"}
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: replicas)
    arguments = ["--topic", str(name), "--now", at(NIGHT_MS).isoformat()]

    killed = submit(sandbox, "replicate_log", *arguments, kill_at=Step.REPLICATE_BATCHES)
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    done = submit(sandbox, "replicate_log", *arguments)

    assert done.returncode == 0, done.stdout[-2000:]
    replica = TopicName("copy", "t", "other")
    assert view_of_table(sandbox.session, replica, 0) == view_of_table(sandbox.session, name, 0)


ERASE = ["--requested-by", "me", "--reason", "asked", "--append"]


def erased(sandbox: LakeSandbox, name: TopicName) -> None:
    """Assert that a and c have a tombstone each, and nothing else."""
    rows = sandbox.session.table(name.records_table).where("offset >= 6").orderBy("offset")
    assert [(bytes(r["key"]), r["value"]) for r in rows.collect()] == [(b"a", None), (b"b", None)]
    batches = sandbox.session.table(name.batches_table).where("base_offset >= 6").collect()
    assert [batch["record_count"] for batch in batches] == [2]
    topic = load(sandbox.session, name)
    assert (topic.partitions[0].log_end_offset, "ebbtide.append" in topic.properties) == (8, False)


def closed_archive(sandbox: LakeSandbox, name: TopicName, directory: Path) -> list[str]:
    """Ingest a log that nobody writes any more; the arguments that erase keys of it."""
    write_log(directory, "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), directory, FIRST_MS)
    closed = {"ebbtide.source": ""}
    compare_and_set(load(sandbox.session, name), Step.CONFIGURE_TOPIC, lambda _: closed)
    return ["--topic", str(name), "--now", at(NIGHT_MS).isoformat(), *ERASE]


@pytest.mark.long
def test_a_killed_erasure_is_finished_by_the_next(
    sandbox: LakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName("erase_keys", "t")
    arguments = closed_archive(sandbox, name, tmp_path / "log")
    monkeypatch.setenv("EBBTIDE_ERASE_KEYS", "a\nb\nnobody")

    killed = submit(sandbox, "erase_keys", *arguments, kill_at=Step.APPEND_BATCHES)
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    done = submit(sandbox, "erase_keys", *arguments)

    assert done.returncode == 0, done.stdout[-2000:]
    erased(sandbox, name)
    assert offsets(view_of_table(sandbox.session, name, 0)) == [3, 4, 5, 6, 7]
    assert "3 keys, 1 of them not found; 3 superseded records removed from the table" in done.stdout
    assert "nobody" not in done.stdout + done.stderr


@pytest.mark.long
def test_two_processes_append_each_tombstone_once(
    sandbox: LakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName("erase_twice", "t")
    arguments = closed_archive(sandbox, name, tmp_path / "log")
    monkeypatch.setenv("EBBTIDE_ERASE_KEYS", "a\nb")
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: submit(sandbox, "erase_keys", *arguments), range(2)))
    assert [process.returncode for process in both] == [0, 0], [
        process.stdout[-3000:] for process in both
    ]
    erased(sandbox, name)
