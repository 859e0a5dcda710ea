"""What became of each key that was to be erased, by its hash: a row of `lake.ebbtide.erasures`.

A run writes two rows a key and partition: `logged` once its tombstone is in the log, `reported`
with what is left below the tombstone.
"""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.log.own_tables import OwnTable

LOGGED, REPORTED = "logged", "reported"


class KeyRow(NamedTuple):
    """A key's row for a partition; without a partition where no table holds the key."""

    key_sha256: str
    partition: int | None = None
    found: int = 0
    way: str | None = None  # None: a tombstone was its latest record already
    tombstone_offset: int | None = None
    superseded: int | None = None
    left: int | None = None
    horizon: int | None = None
    out_of_table_at: int | None = None
    off_disk_from: int | None = None


ERASURES = OwnTable(
    name="erasures",
    columns="""
    run_id STRING, topic STRING, status STRING COMMENT 'logged or reported',
    requested_at TIMESTAMP, requested_by STRING, reason STRING,
    key_sha256 STRING COMMENT 'of the bytes of the key, in hex',
    `partition` INT COMMENT 'null where no partition holds the key',
    found BIGINT COMMENT 'records of the key before its tombstone',
    way STRING COMMENT 'produced, appended or deleted; null where a tombstone was there already',
    tombstone_offset BIGINT,
    superseded BIGINT COMMENT 'how many of those found have left the table',
    left BIGINT COMMENT 'how many have not yet',
    horizon TIMESTAMP COMMENT 'when the tombstone itself may leave; null until a round set it',
    out_of_table_at TIMESTAMP COMMENT 'when the last of them had left; null while some are left',
    off_disk_from TIMESTAMP
        COMMENT 'expire_snapshots frees them from then on, once their files are rewritten'
    """,
    day="requested_at",
    build=KeyRow,
)
