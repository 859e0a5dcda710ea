"""The table of erasures: who erased which keys. Each key is named by an HMAC with a secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.erased_keys import TIMES, ErasedKeys, named_keys
from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import find_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import whole_file
from ebbtide.iceberg.metadata import TableColumn
from ebbtide.iceberg.own_tables import create_own, own_schema
from ebbtide.iceberg.segment_planning import AskedFile, RowsAsked, asked_files, filtered
from ebbtide.iceberg.topics import Topic
from ebbtide.ledger.erasure_secrets import KeyNames, Secret, known_secret, secret_of
from ebbtide.ledger.own_tables import ERASURES, LOGGED, KeyRow, NamedKey
from ebbtide.numbers import MAX_LONG
from ebbtide.settings.config import DESTROYED_SECRETS
from ebbtide.settings.names import TopicName
from ebbtide.spark.tasks import errors_of_tasks, told_as_text
from ebbtide.specs.erase_request import Erasure
from ebbtide.stores.store import Store


def append_erasures(
    spark: SparkSession, name: TopicName, erasure: Erasure, status: str, rows: Iterable[KeyRow]
) -> None:
    """Append the rows of keys to the table of erasures."""
    request = {
        "run_id": erasure.run_id,
        "topic": str(name),
        "status": status,
        "requested_at": erasure.now_ms,
        "requested_by": erasure.requested_by,
        "reason": erasure.reason,
    }
    schema = own_schema(ERASURES, "ms")
    cells = [{"erased_at": erasure.now_ms} | _cells(row) | request for row in rows]
    table = pa.Table.from_pylist(cells, schema=schema)
    if table.num_rows:
        create_own(spark, ERASURES)
        frame = spark.createDataFrame(table)
        commit(Step.ERASURE_ROWS, frame.writeTo(ERASURES.in_catalog()).append)


def _cells(row: KeyRow) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if value is not None}


def logged_before(
    spark: SparkSession, name: TopicName, run_id: str
) -> dict[tuple[int, str], KeyRow]:
    """Return the rows that an earlier attempt of the run has written, by partition and HMAC."""
    if not table_exists(spark, ERASURES.in_catalog()):
        return {}
    is_mine = (F.col("run_id") == run_id) & (F.col("topic") == str(name))
    create_own(spark, ERASURES)
    rows = (
        spark.table(ERASURES.in_catalog())
        .where(is_mine & (F.col("status") == LOGGED))
        .where(F.col("partition").isNotNull() & F.col("key_hmac").isNotNull())
        .select(*NamedKey._fields, "erased_at", "partition", "found", "way", "tombstone_offset")
        .withColumn("erased_at", F.unix_millis("erased_at"))
        .toArrow()
        .to_pylist()
    )
    return {(row["partition"], row["key_hmac"]): KeyRow(**row) for row in rows}


def named_by(secret: Secret, key: Column) -> Column:
    """Return the HMAC of a key. It is no SQL function, whose text would show the secret."""

    def name(key: bytearray | None) -> str | None:
        return None if key is None else secret.name(bytes(key))

    return F.udf(name, "string")(key)


def erasures_on(topic: Topic) -> DataFrame | None:
    """Return the topic's rows with a column `name`, or None if no key was ever erased."""
    if not table_exists(topic.spark, ERASURES.in_catalog()):
        return None
    rows = topic.spark.table(ERASURES.in_catalog()).where(F.col("topic") == topic.erased_under)
    sha256 = F.col("key_sha256")
    known = F.coalesce("key_hmac", sha256) if "key_hmac" in rows.columns else sha256
    return rows.withColumn("name", known)


def tombstones_of_erasures(topic: Topic) -> dict[tuple[int, str], int]:
    """Return the offset of each erased key's last tombstone, by partition and the key's name."""
    rows = erasures_on(topic)
    if rows is None:
        return {}
    last = F.max("tombstone_offset").alias("offset")
    found = rows.where("tombstone_offset IS NOT NULL").groupBy("partition", "name").agg(last)
    return {(row["partition"], row["name"]): row["offset"] for row in found.collect()}


# In a run's result: records of erased keys that are in the table.
ROWS_OF_ERASED_KEYS = "rows_of_erased_keys"

# Refuse records of erased keys that are older than the erasure, in each job that copies records.

_OF_KEY = ("key_block", "erased_at")


class _KeyFile(NamedTuple):
    """A file of the table of erasures with erased keys of a topic."""

    path: str
    size_bytes: int
    columns: tuple[TableColumn, ...]
    texts: Mapping[str, str]  # of a row of the topic, where those of other rows may differ

    @classmethod
    def of(cls, file: AskedFile, texts: Mapping[str, str]) -> _KeyFile:
        columns = file.columns({*_OF_KEY, *texts})
        return cls(file.bounds.path, file.bounds.size_bytes, columns, texts)

    def read(self, store: Store) -> pa.Table:
        rows = whole_file(store, self.path, self.size_bytes, self.columns)
        for column, text in self.texts.items():
            rows = filtered(rows, pc.equal(rows[column], text))
        return rows.select(_OF_KEY)


class _StoredKeys(NamedTuple):
    """A topic's erased keys, which only a record that is older than an erasure needs."""

    store: Store
    files: Sequence[_KeyFile]
    without: Sequence[bytes]  # blocks of keys to leave out

    def read(self) -> pa.Table:
        """Return `key_block, erased_at` of each row."""
        rows = pa.concat_tables(file.read(self.store) for file in self.files)
        if not self.without:
            return rows
        is_named = pc.is_in(rows["key_block"], pa.array(self.without, pa.binary()))
        return filtered(rows, pc.invert(is_named))


class _Known(NamedTuple):
    secret: Secret
    files: Sequence[AskedFile]  # with erased keys of the topic

    def keys(self, topic: Topic, without: Iterable[bytes]) -> ErasedKeys:
        """Return the topic's erased keys except those in `without`."""
        texts = {"topic": topic.erased_under, "secret": self.secret.fingerprint}
        files = [
            _KeyFile.of(file, {name: texts[name] for name in _mixed(file)}) for file in self.files
        ]
        store = self.files[0].table.store
        blocks = [key.key_block for key in named_keys(self.secret, list(without)).values()]
        newest_us = [file.largest("erased_at") for file in self.files]
        last_us = max(MAX_LONG if us is None else us for us in newest_us)
        return ErasedKeys(self.secret, last_us, _StoredKeys(store, files, blocks).read)


def _mixed(file: AskedFile) -> list[str]:
    """Return the columns in which a file may have rows of other topics or secrets."""
    return [name for name in ("topic", "secret") if file.only_text(name) is None]


def _secrets_in(file: AskedFile, asked: RowsAsked) -> set[str]:
    """Return the secrets of the asked rows. Only columns whose bounds differ are read."""
    if not file.columns({"key_block"}):  # no erasure since a version without secrets
        return set()
    mixed = _mixed(file)
    rows = file.rows(mixed)
    if "topic" in mixed:
        rows = asked.among(rows)
        if not rows.num_rows:
            return set()
    only = file.only_text("secret")
    return {only} if only else set(pc.unique(rows["secret"]).to_pylist()) - {None}


def _known(topic: Topic) -> _Known | None:
    """Return the secret and the files of a topic's erased keys, or None if there are none.

    Raise ConfigurationError if their secret is missing.
    """
    name = topic.erased_under
    asked = RowsAsked("topic", frozenset([name]))
    files = [
        (file, _secrets_in(file, asked))
        for file in asked_files(topic.spark, ERASURES.in_catalog(), asked)
    ]
    destroyed = set(topic.config.destroyed_secrets)
    needed = {text for _, secrets in files for text in secrets} - destroyed
    if not needed:
        return None
    secret = known_secret(name)
    if secret is None or needed != {secret.fingerprint}:
        raise ConfigurationError(
            f"expected the secret of {name} with the fingerprint "
            f"{', '.join(sorted(needed))}, found {secret.fingerprint if secret else 'none'}: "
            "without it, records of erased keys are not recognised. Restore its file from a "
            "backup. If it was deleted so that no one can find out the keys, set "
            f"{DESTROYED_SECRETS} to the fingerprint"
        )
    return _Known(secret, [file for file, secrets in files if secret.fingerprint in secrets])


def secret_for(topic: Topic) -> Secret:
    """Return the topic's secret. The first use creates it.

    Raise ConfigurationError if keys were erased with a secret that is missing.
    """
    known, name = _known(topic), topic.erased_under
    secret = secret_of(name) if known is None else known.secret
    if secret.fingerprint in topic.config.destroyed_secrets:
        raise ConfigurationError(
            f"expected no file of the secret {secret.fingerprint} of {name}, which "
            f"{DESTROYED_SECRETS} calls destroyed, found one: what is erased with it would come "
            f"back. Remove the fingerprint from {DESTROYED_SECRETS}, or delete the file"
        )
    return secret


def erased_keys(topic: Topic, without: Iterable[bytes] = ()) -> ErasedKeys | None:
    """Return the topic's erased keys except those in `without`, or None if there are none.

    Raise ConfigurationError if their secret is missing.
    """
    known = _known(topic)
    return None if known is None else known.keys(topic, without)


def shared_erased_keys(topic: Topic, without: Iterable[bytes] = ()) -> Broadcast[ErasedKeys] | None:
    """Return the topic's erased keys for tasks, each of whose processes gets them once."""
    erased = erased_keys(topic, without)
    return None if erased is None else topic.spark.sparkContext.broadcast(erased)


def without_erased(topic: Topic, rows: DataFrame, *, keeps_places: bool = True) -> DataFrame:
    """Return the rows with empty refused records, or without them if not `keeps_places`."""
    erased = shared_erased_keys(topic)
    if erased is None:
        return rows

    def strip(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_as_text():
            for batch in batches:
                table = pa.Table.from_batches([batch])
                if keeps_places:
                    table = erased.value.stripped(table)
                else:
                    table = table.filter(pa.array(~erased.value.refused_of(table)))
                yield from table.to_batches()

    return rows.mapInArrow(strip, rows.schema)


def erasures_snapshot(spark: SparkSession) -> str:
    """Return the id of the current snapshot of the table of erasures, or "" if it has none."""
    table = find_table(spark, ERASURES.in_catalog())
    return "" if table is None or table.current is None else str(table.current.id)


def erased_above_tombstones(topic: Topic, is_asked: str) -> int:
    """Count the asked records of erased keys that no tombstone of their erasure supersedes.

    `is_asked` is a condition in SQL. Only an own topic has tombstones.
    """
    erased = shared_erased_keys(topic)
    if erased is None:
        return 0

    def of_erased(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_as_text():
            for batch in batches:
                table = pa.Table.from_batches([batch])
                is_erased = pa.array(erased.value.refused_of(table))
                found = table.select(["partition", "offset", "key"]).filter(is_erased)
                yield from found.to_batches()

    rows = topic.spark.table(topic.name.records_table).where(is_asked)
    rows = rows.select("partition", "offset", "key", "headers", *TIMES)
    with errors_of_tasks():
        found = rows.mapInArrow(of_erased, "partition int, offset long, key binary").toArrow()
    names, tombstones = KeyNames.of(topic.erased_under), tombstones_of_erasures(topic)
    return sum(
        row["offset"]
        > max(tombstones.get((row["partition"], name), -1) for name in names.names(row["key"]))
        for row in found.to_pylist()
    )


def count_erased(erased: Broadcast[ErasedKeys], rows: DataFrame) -> int:
    """Count the records of erased keys. `rows` have a `key` and at least one of TIMES."""

    def of_erased(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_as_text():
            for batch in batches:
                refused = erased.value.refused_of(pa.Table.from_batches([batch]))
                yield pa.RecordBatch.from_pydict({"rows": pa.array([refused.sum()], pa.int64())})

    with errors_of_tasks():
        total = rows.mapInArrow(of_erased, "rows long").agg(F.sum("rows")).first()
    assert total is not None
    return int(total[0] or 0)
