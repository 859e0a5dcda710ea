"""mark_tombstones and expire_snapshots on tables."""

from pathlib import Path

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import TIDIED
from tests.lake_sandbox import LakeSandbox
from tests.tables.files import unneeded
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties

TOMBSTONE_FLAG = 0x20
NIGHT_MS = FIRST_MS + 10 * DAY_MS
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
MESSAGES = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1"), Message("d", "1")],
    [Message("a", None), Message("b", "why", attributes=TOMBSTONE_FLAG), Message("c", "")],
    [Message("e", "1")],
]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", FIRST_MS)
    return TopicName(cluster, "t")


@pytest.mark.long
def test_marking_again_reads_and_commits_nothing(sandbox: LakeSandbox, name: TopicName) -> None:
    mark(sandbox.session, str(name))
    before = current_snapshot(sandbox.session, name.records_table)
    assert mark(sandbox.session, str(name)).partitions[0]["marked"] == 0
    assert current_snapshot(sandbox.session, name.records_table) == before


@pytest.mark.long
def test_expired_snapshots_take_the_removed_values_off_the_disk(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    set_properties(sandbox.session, str(name), {"history.expire.max-snapshot-age-ms": "0"})
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    kept = view_of_table(sandbox.session, name, 0)
    outcome = execute_expire_snapshots(load(sandbox.session, name))
    assert outcome.topic["files_rewritten"] > 0
    assert outcome.topic["bytes_freed"] > 0
    assert outcome.topic["snapshots_expired"] > 0
    assert view_of_table(sandbox.session, name, 0) == kept
    files = sandbox.session.sql(
        f"SELECT sum(record_count) AS n FROM {name.records_table}.all_files"
    )
    row = files.first()
    assert row is not None
    assert row["n"] == len(kept.records)
    for table in (name.records_table, name.batches_table):
        assert sandbox.session.sql(f"SELECT * FROM {table}.snapshots").count() == 1


def test_a_killed_expiry_of_snapshots_loses_nothing(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    set_properties(sandbox.session, str(name), {"history.expire.max-snapshot-age-ms": "0"})
    kept = view_of_table(sandbox.session, name, 0)
    for step in (Step.REWRITE_FILES, Step.EXPIRE_SNAPSHOTS, Step.TIDIED):
        kill_at.append(step)
        with pytest.raises(KilledError):
            execute_expire_snapshots(load(sandbox.session, name))
        assert view_of_table(sandbox.session, name, 0) == kept
        assert TIDIED not in load(sandbox.session, name).properties
        for path in unneeded(sandbox.session, name.records_table):
            path.unlink()  # as another tool deletes orphan files
    execute_expire_snapshots(load(sandbox.session, name))
    assert view_of_table(sandbox.session, name, 0) == kept
    assert TIDIED in load(sandbox.session, name).properties
