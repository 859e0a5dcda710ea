"""A replica gets no record of a key that was erased after it was written."""

from __future__ import annotations

from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.erased import note_erased
from tests.jobs.replicate_log.replicas import replica_of, replicate
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS


def test_an_older_record_is_copied_without_key_and_value(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    def rows(topic: TopicName) -> list[tuple[object, ...]]:
        table = sandbox.session.table(topic.records_table).where("`partition` = 0")
        return [tuple(row) for row in table.orderBy("offset").select("offset", "key").collect()]

    note_erased(sandbox.session, name, "a", FIRST_MS + 1)
    replicate(sandbox, name)
    assert [key for _, key in rows(name)].count(b"a") == 4
    assert rows(replica_of(name)) == [
        (offset, None if key == b"a" else key) for offset, key in rows(name)
    ]
