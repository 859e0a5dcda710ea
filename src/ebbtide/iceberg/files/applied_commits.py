"""Commit an update of a table, and recognise it if the catalog made it and then refused it.

A gateway that repeats a POST lets a REST catalog make a commit and refuse its repetition. Iceberg
takes that for a lost race, and deletes the files of the snapshot that is current by now. Here none
is deleted before the table was looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.spark.jvm import JavaMethod, items, java_class

log = logging.getLogger(__name__)

_QUEUE = "java.util.concurrent.ConcurrentLinkedQueue"


def commit_update(spark: SparkSession, table: Any, update: Any) -> int:
    """Commit one of Iceberg's updates of its table `table`; return the id of its snapshot.

    The update must not be part of a transaction, which deletes files by itself.
    """
    unneeded = java_class(spark, _QUEUE)()
    keep = JavaMethod.of(spark, _QUEUE, "add", "java.lang.Object").on(unneeded)
    update = update.deleteWith(keep.as_a("java.util.function.Consumer"))
    made = None
    try:
        update.commit()
    except Exception as error:
        made = _made(spark, table, _listed(spark, unneeded))
        if made is None:
            _delete(table, _listed(spark, unneeded))
            raise
        log.warning(
            "the catalog made the commit of snapshot %s to %s and answered that it had not, as "
            "where something before it repeats requests: %s",
            made.snapshotId(),
            table.name(),
            str(error).splitlines()[0],
        )
    named = set() if made is None else _files_of(table, made)
    _delete(table, set(_listed(spark, unneeded)) - named)
    return int((made or update.updateEvent()).snapshotId())


def _made(spark: SparkSession, table: Any, paths: Collection[str]) -> Any:
    """Return the snapshot of the table whose list of manifests is among the paths, or None."""
    if not paths:
        return None
    table.refresh()
    snapshots = _listed_objects(spark, table.snapshots())
    return next((of for of in reversed(snapshots) if of.manifestListLocation() in paths), None)


def _files_of(table: Any, made: Any) -> set[str]:
    manifests = items(made.allManifests(table.io()))
    return {str(made.manifestListLocation()), *(str(manifest.path()) for manifest in manifests)}


def _delete(table: Any, paths: Collection[str]) -> None:
    """Delete files that no snapshot names; one that stays is a file too many, and no more."""
    for path in paths:
        with suppress(Py4JJavaError):
            table.io().deleteFile(path)


def _listed(spark: SparkSession, queue: Any) -> list[str]:
    return [str(path) for path in _listed_objects(spark, queue)]


def _listed_objects(spark: SparkSession, collection: Any) -> list[Any]:
    return items(java_class(spark, "java.util.ArrayList")(collection))
