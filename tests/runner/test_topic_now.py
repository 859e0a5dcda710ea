"""What a job says of its topic in the end is what the tables hold."""

from pathlib import Path

from ebbtide.iceberg.topics import load
from ebbtide.lake.reader import open_lake
from ebbtide.runner.runs_table import JobOutcome, summary_of
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties

MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2"), Message("b", None)],
    [Message("c", "1")],
]
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def test_a_summary_counts_what_the_tables_hold(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    write_log(tmp_path, "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    set_properties(sandbox.session, str(name), {f"kafka.{n}": v for n, v in CONFIG.items()})
    before = summary_of(sandbox.session, name, mark(sandbox.session, str(name)))
    cleaned = clean(sandbox.session, str(name), FIRST_MS + DAY_MS)
    after = summary_of(sandbox.session, name, cleaned)
    assert before is not None
    assert after is not None
    assert (before.records, before.closed_records, before.dirty_records) == (5, 4, 4)
    assert (after.records, after.closed_records, after.dirty_records) == (3, 2, 0)
    assert (before.waiting, after.waiting) == (None, 1)
    assert after.cleanup_policy == "compact"
    state = load(sandbox.session, name).partitions[0]
    assert after.next_horizon_ms == state.next_horizon_ms
    assert after.next_horizon_ms is not None
    assert after.file_bytes == sum(
        row["content_size_in_bytes"] or row["file_size_in_bytes"]  # the first of a vector alone
        for table in (name.records_table, name.batches_table)
        for row in sandbox.session.table(f"{table}.files").collect()
    )
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        contents = lake.contents(str(name))[0]
    assert (contents.records, contents.file_bytes) == (after.records, after.file_bytes)
    assert after.oldest_event_ms == contents.oldest_event_ms == FIRST_MS


def oldest_event_ms(sandbox: LakeSandbox, name: TopicName, done: JobOutcome) -> int | None:
    summary = summary_of(sandbox.session, name, done)
    assert summary is not None
    return summary.oldest_event_ms


def test_a_file_whose_records_are_all_gone_tells_of_no_event(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    messages = [[Message("a", "1", 5)], [Message("b", "1", 3), Message("c", "1", 4)]]
    write_log(tmp_path, "t", messages, CONFIG)
    ingested = ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    assert oldest_event_ms(sandbox, name, ingested) == FIRST_MS + 3
    for offset, oldest_ms in ((1, FIRST_MS + 3), (2, FIRST_MS + 5)):
        sandbox.session.sql(f"DELETE FROM {name.records_table} WHERE offset = {offset}")
        with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
            assert lake.contents(str(name))[0].oldest_event_ms == oldest_ms
        assert oldest_event_ms(sandbox, name, ingested) == oldest_ms
    assert oldest_event_ms(sandbox, name, JobOutcome()) is None  # it has committed nothing


def test_what_cannot_be_read_has_no_summary(sandbox: LakeSandbox, cluster: str) -> None:
    missing = TopicName(cluster, "missing")
    assert summary_of(sandbox.session, missing, JobOutcome()) is None
    broken = TopicName(cluster, "broken")
    sandbox.topic(str(broken), config={"kafka.retention.ms": "soon"})
    assert summary_of(sandbox.session, broken, JobOutcome()) is None
