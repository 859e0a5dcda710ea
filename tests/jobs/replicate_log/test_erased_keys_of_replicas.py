"""A replica gets no record of a key that was erased after it was written."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.erased import note_erased
from tests.jobs.replicate_log.replicas import replica_of, replicate
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS


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
