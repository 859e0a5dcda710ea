"""A replica gets no record of a key that was erased after it was written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.erased import note_erased
from tests.jobs.export_segments.exports import export
from tests.jobs.replicate_log.replicas import replica_of, replicate
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS


def test_keys_of_a_replica_are_erased_under_the_name_of_its_primary(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    replicate(sandbox, name)
    note_erased(sandbox.session, name, "k1", FIRST_MS + 1)
    replica = load(sandbox.session, replica_of(name))
    assert replica.erased_under == str(name)
    exported = []
    for topic in (name, replica_of(name)):
        export(sandbox.session, topic, tmp_path / topic.catalog)
        files = (tmp_path / topic.catalog).rglob("*.log")
        exported.append(b"".join(path.read_bytes() for path in sorted(files)).count(b"k1"))
    assert exported == [2, 2]  # the tombstone of each partition


def test_an_older_record_is_copied_without_key_and_value(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    """A replica may have a value that only this tombstone removes."""

    def rows(topic: TopicName) -> list[Any]:
        table = sandbox.session.table(topic.records_table).where("`partition` = 0")
        return table.orderBy("offset").select("offset", "key", "is_tombstone").collect()

    note_erased(sandbox.session, name, "k1", FIRST_MS + 1)
    replicate(sandbox, name)
    of_key = Counter(row["is_tombstone"] for row in rows(name) if row["key"] == b"k1")
    assert of_key == {False: 1, True: 1}
    assert rows(replica_of(name)) == [
        (offset, None if key == b"k1" and not is_tombstone else key, is_tombstone)
        for offset, key, is_tombstone in rows(name)
    ]
