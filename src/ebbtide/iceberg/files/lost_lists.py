"""Snapshots that have lost the list of their manifests, so that nobody can read them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import Table, find_table, open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.metadata import Snapshot

_AT_ONCE = 16


class LostList(NamedTuple):
    """A table whose newest snapshot cannot be read, and the snapshot before it, if any."""

    table: str
    snapshot: int
    path: str
    parent: int | None


def lost_list(spark: SparkSession, name: str) -> LostList | None:
    """Return the newest snapshot of a table if its list of manifests is gone."""
    table = find_table(spark, name)
    if table is None or table.current is None or not _is_lost(table, table.current):
        return None
    current = table.current
    return LostList(str(table), current.id, current.manifest_list, current.parent)


def forget_lost(spark: SparkSession, name: str) -> None:
    """Remove the snapshots of a table, other than the newest, whose list of manifests is gone.

    Iceberg's expiry would read the list. Files of theirs that no other snapshot names stay.
    """
    table = open_table(spark, name)
    older = [of for of in table.metadata.snapshots.values() if of != table.current]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        are_lost = list(pool.map(partial(_is_lost, table), older))
    lost = [of.id for of, is_lost in zip(older, are_lost, strict=True) if is_lost]
    if not lost:
        return
    tags = [tag for tag in table.metadata.refs if table.java.refs().get(tag).snapshotId() in lost]
    if tags:
        refs = table.java.manageSnapshots()
        for tag in tags:
            refs = refs.removeTag(tag)
        commit(Step.TAGS_RELEASED, refs.commit)
    expiry = table.java.expireSnapshots().cleanExpiredFiles(False)
    for snapshot in lost:
        expiry = expiry.expireSnapshotId(snapshot)
    commit(Step.LOST_SNAPSHOTS, expiry.commit)


def _is_lost(table: Table, snapshot: Snapshot) -> bool:
    return not table.store.has(snapshot.manifest_list)
