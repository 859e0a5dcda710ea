"""A topic's state: properties of an Iceberg table without rows, changed by one job at a time.

A change sets properties and appends an empty snapshot on the main branch, in one metadata commit.
Every catalog refuses such a commit if its base is not the newest, because the commit asserts the
branch's head. A commit of properties alone asserts only the table's id on a REST catalog
(docs/adr/0006).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.iceberg.catalog import (
    Table,
    check_catalog,
    find_table,
    iceberg_catalog,
    identifier,
    open_apart,
    open_table,
    parts_of,
    table_exists,
)
from ebbtide.iceberg.commits import Step, commit
from ebbtide.settings.names import OWN_NAMESPACE, STATE_SUFFIX, TopicName, quoted
from ebbtide.spark.jvm import (
    ICEBERG,
    as_dict,
    iceberg_class,
    items,
    java_array,
    java_class,
    java_map,
)
from ebbtide.state.topic_state import PREFIX, sealed, state_of, unsealed

# Namespaces, tables and views are created through Iceberg itself. A topic has two tables and three
# views, and a Spark statement for each would take 30 to 100 ms of CPU time.


# Threads create topics at the same time, and the JDBC catalog checks and inserts in two steps.
_ONE_AT_A_TIME = Lock()
# Partition fields of a table: a transform's name in Iceberg's builder, and a column.
Partitioning = Sequence[tuple[str, str]]


def create_namespace(spark: SparkSession, namespace: str) -> None:
    """Create the namespace, given as a quoted SQL identifier, if it does not exist."""
    catalog_name, *names = parts_of(namespace)
    catalog = iceberg_catalog(spark, catalog_name)
    java_namespace = _namespace(spark, names)
    with _ONE_AT_A_TIME:
        if not catalog.namespaceExists(java_namespace):
            unless_there(
                lambda: catalog.createNamespace(java_namespace, java_map(spark, _owner(spark))),
                lambda: catalog.namespaceExists(java_namespace),
            )


def drop_namespace(spark: SparkSession, namespace: str) -> None:
    """Drop an empty namespace, given as a quoted SQL identifier. Java raises if it is not empty."""
    catalog_name, *names = parts_of(namespace)
    java_namespace = _namespace(spark, names)
    iceberg_catalog(spark, catalog_name).dropNamespace(java_namespace)


def create_table(
    spark: SparkSession,
    table: str,
    columns: str,
    properties: Mapping[str, str],
    partitioning: Partitioning,
) -> None:
    """Create a table with these columns, in the form of SQL's DDL, if it does not exist."""
    if table_exists(spark, table):
        return
    schema = _schema(spark, columns)
    spec = iceberg_class(spark, "PartitionSpec").builderFor(schema)
    for transform, column in partitioning:
        spec = getattr(spec, transform)(column)
    catalog_name, *names = parts_of(table)
    catalog, of_table = iceberg_catalog(spark, catalog_name), identifier(spark, names)
    settings = java_map(spark, {**_owner(spark), **properties})
    unless_there(
        lambda: catalog.createTable(of_table, schema, spec.build(), settings),
        lambda: catalog.tableExists(of_table),
    )


def create_view(
    spark: SparkSession,
    view: str,
    query: str,
    columns_of: str,
    columns: Sequence[str],
    replaces: str | None = None,
) -> None:
    """Create a view for Spark if it does not exist, and drop the view that it replaces.

    Its columns are these columns of table `columns_of`, with their names and comments.
    """
    catalog_name, *names = parts_of(view)
    catalog, of_view = iceberg_catalog(spark, catalog_name), identifier(spark, names)
    if catalog.viewExists(of_view):
        return
    settings = {
        "create_engine_version": f"Spark {spark.version}",
        "engine_version": f"Spark {spark.version}",
        "spark.query-column-names": ",".join(columns),
    }
    schema = open_table(spark, columns_of).java.schema()
    builder = (
        catalog.buildView(of_view)
        .withSchema(_numbered_anew(spark, schema.select(java_array(spark, columns))))
        .withQuery("spark", query.strip())
        .withDefaultCatalog("spark_catalog")
        .withDefaultNamespace(_namespace(spark, ["default"]))
        .withProperties(java_map(spark, settings))
    )
    if replaces is not None:  # first, so that a killed run drops it the next time
        catalog.dropView(identifier(spark, parts_of(replaces)[1:]))  # false if there is none
    unless_there(builder.create, lambda: catalog.viewExists(of_view))


def unless_there(create: Callable[[], object], exists: Callable[[], bool]) -> None:
    """Create something by Java, or do nothing if it already exists."""
    try:
        create()
    except Py4JJavaError:  # another job may be faster; JDBC's createNamespace does not say so
        if not exists():
            raise


def _owner(spark: SparkSession) -> dict[str, str]:
    """Return Spark's property for the user who created something."""
    return {"owner": spark.sparkContext.sparkUser()}


def _schema(spark: SparkSession, columns: str) -> Any:
    struct = java_class(spark, "org.apache.spark.sql.types.StructType").fromDDL(columns)
    return iceberg_class(spark, "spark.SparkSchemaUtil").convert(struct)


def _numbered_anew(spark: SparkSession, schema: Any) -> Any:
    """Return the schema with ids from 0, as a query's columns have them."""
    schemas = iceberg_class(spark, "spark.SparkSchemaUtil")
    return schemas.convert(schemas.convert(schema))


def _namespace(spark: SparkSession, names: Sequence[str]) -> Any:
    return iceberg_class(spark, "catalog.Namespace").of(java_array(spark, names))


_SETTINGS = {
    "format-version": "2",
    "write.metadata.compression-codec": "gzip",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}
# This table is created once the catalog has refused a commit from a stale base.
_PROBED = "exclusive_commits"
_ANY_STATE = f"{PREFIX}0.probe"
# A property that Nessie's REST catalog sends each client.
_IS_NESSIE = "nessie.is-nessie-catalog"


@dataclass(frozen=True, slots=True)
class HeldState:
    """A topic's state as it was read. It can be changed only if it is still the newest."""

    table: Table
    properties: Mapping[str, str]

    def change_to(self, properties: Mapping[str, str]) -> None:
        """Replace the state. Raise CommitConflictError if it has changed since it was read."""
        operations = self.table.java.operations()
        base = operations.current()
        if str(base.metadataFileLocation()) != self.table.metadata.file:
            raise self._conflict()
        try:
            self._commit(operations, base, properties)
        except Py4JJavaError as error:
            # The other writer has deleted the manifest list that this change builds on, or dropped
            # the table.
            newest = find_table(self.table.spark, self.table.name)
            if newest is not None and newest.metadata.file == self.table.metadata.file:
                raise
            raise self._conflict() from error
        self._remove_list_of_manifests()

    def _conflict(self) -> CommitConflictError:
        return CommitConflictError(
            f"expected the state of {self.table} as it was read, found that another job changed it "
            "meanwhile. Run the job again"
        )

    def _commit(self, operations: Any, base: Any, properties: Mapping[str, str]) -> None:
        spark, before = self.table.spark, base.currentSnapshot()
        state = sealed(properties)
        changed = {n: v for n, v in state.items() if self.properties.get(n) != v}
        removed = [name for name in self.properties if name not in state]
        builder = iceberg_class(spark, "TableMetadata").buildFrom(base)
        builder.setBranchSnapshot(self.table.java.newAppend().apply(), "main")
        if before is not None:
            snapshots = java_class(spark, "java.util.Collections").singletonList(before)
            builder.removeSnapshots(snapshots)
        builder.setProperties(java_map(spark, changed))
        if removed:
            builder.removeProperties(java_map(spark, dict.fromkeys(removed, "")).keySet())
        operations.commit(base, builder.build())

    def _remove_list_of_manifests(self) -> None:
        """Delete the previous snapshot's manifest list. If that fails, the file does no harm."""
        before = self.table.current
        if before is not None:
            with suppress(Py4JJavaError):
                self.table.java.io().deleteFile(before.manifest_list)


def read_state(spark: SparkSession, name: TopicName) -> HeldState | None:
    """Read the topic's current state, or return None if it has no state table.

    Raise StateError if something other than ebbtide changed the state.
    """
    table = find_table(spark, name.state_table)
    return None if table is None else _checked(name, table)


def _checked(name: TopicName, table: Table) -> HeldState:
    held = _unchecked(table)
    return replace(held, properties=unsealed(str(name), held.properties))


def _unchecked(table: Table) -> HeldState:
    return HeldState(table, state_of(table.metadata.properties))


def create_state(spark: SparkSession, name: TopicName, properties: Mapping[str, str]) -> None:
    """Create the topic's state table with this state, unless it exists.

    Raise ConfigurationError if the catalog's commits are not exclusive.
    """
    check_commits(spark, name.catalog)
    create_namespace(spark, quoted(name.catalog, name.cluster + STATE_SUFFIX))
    _create(spark, name, sealed(properties))


def overwrite_state(spark: SparkSession, name: TopicName, properties: Mapping[str, str]) -> None:
    """Replace the state, also if it does not exist or is damaged."""
    create_state(spark, name, properties)
    _unchecked(open_table(spark, name.state_table)).change_to(properties)


def tables_in(spark: SparkSession, catalog: str, namespace: str) -> list[str]:
    """Return the names of a namespace's tables; none if there is no such namespace."""
    opened = iceberg_catalog(spark, catalog)
    named = iceberg_class(spark, "catalog.Namespace").of(java_array(spark, [namespace]))
    if not opened.namespaceExists(named):
        return []
    return [str(table.name()) for table in items(opened.listTables(named))]


def topics_of_table(spark: SparkSession, name: TopicName) -> list[TopicName]:
    """Return, in order, the topics with a state whose records table is that of `name`."""
    names = tables_in(spark, name.catalog, name.cluster + STATE_SUFFIX)
    listed = [name._replace(topic=table) for table in names]
    return sorted(topic for topic in listed if topic.table == name.table)


def drop_state(spark: SparkSession, name: TopicName) -> None:
    """Drop the topic's state table, if it has one."""
    _catalog(spark, name).dropTable(_identifier(spark, name), True)


def _create(spark: SparkSession, name: TopicName, properties: Mapping[str, str]) -> None:
    schema = iceberg_class(spark, "SchemaParser").fromJson(
        '{"type": "struct", "schema-id": 0, "fields": '
        '[{"id": 1, "name": "no_rows", "required": false, "type": "int"}]}'
    )
    unpartitioned = iceberg_class(spark, "PartitionSpec").unpartitioned()
    settings = java_map(spark, {**_SETTINGS, **properties})
    catalog, table = _catalog(spark, name), _identifier(spark, name)
    unless_there(
        lambda: catalog.createTable(table, schema, unpartitioned, settings),
        lambda: catalog.tableExists(table),
    )


def check_commits(spark: SparkSession, catalog: str) -> None:
    """Raise ConfigurationError if jobs cannot rely on the catalog's commits.

    A catalog is tried out once, before anything else is created there. If it fails, nothing stays
    in it.
    """
    check_catalog(spark, catalog)
    marker = TopicName(OWN_NAMESPACE, _PROBED, catalog)
    if read_state(spark, marker) is not None:
        return
    _refuse_nessie(spark, catalog)
    states = quoted(catalog, OWN_NAMESPACE + STATE_SUFFIX)
    try:
        create_namespace(spark, states)
        _try_out(spark, catalog)
    except Exception:
        with suppress(Py4JJavaError):  # the namespace has states of another job
            drop_namespace(spark, states)
        raise
    commit(Step.PROBE, partial(_create, spark, marker, sealed({})))


def _refuse_nessie(spark: SparkSession, catalog: str) -> None:
    java = iceberg_catalog(spark, catalog)
    is_rest = is_instance_of(spark.sparkContext._gateway, java, ICEBERG + "rest.RESTCatalog")
    if is_rest and as_dict(spark, java.properties()).get(_IS_NESSIE) == "true":
        raise ConfigurationError(
            "expected a catalog that refuses conflicting commits and lets jobs expire snapshots, "
            f"found Nessie behind spark.sql.catalog.{catalog}.uri in spark-defaults.conf: it can "
            "accept two first commits to one table, and it retains every snapshot, so no space "
            "would ever be freed. Nothing was written. Use another catalog (docs/stores.md)"
        )


def _try_out(spark: SparkSession, catalog: str) -> None:
    """Change a scratch table twice from a stale base, then drop the table."""
    scratch = TopicName(OWN_NAMESPACE, f"probe_{uuid.uuid4().hex}", catalog)
    _create(spark, scratch, sealed({}))
    try:
        _ = open_apart(spark, scratch.state_table).store  # checks what the catalog's server sends
        _check_exclusive(spark, scratch)
    finally:
        drop_state(spark, scratch)


def _check_exclusive(spark: SparkSession, scratch: TopicName) -> None:
    for number in range(2):  # the table's first snapshot, then one with a parent
        # Two objects, because Iceberg itself would refuse a second change by the same one.
        late, early = (_checked(scratch, open_apart(spark, scratch.state_table)) for _ in "12")
        early.change_to({_ANY_STATE: str(number)})
        try:
            late.change_to({_ANY_STATE: "late"})
        except CommitConflictError:
            continue
        raise ConfigurationError(
            f"expected catalog {scratch.catalog} to refuse a commit that was prepared on an older "
            "version of a table, found that it accepted one: concurrent jobs would overwrite each "
            "other's work. Nothing was written. Use another catalog (docs/stores.md)"
        )


def _catalog(spark: SparkSession, name: TopicName) -> Any:
    return iceberg_catalog(spark, name.catalog)


def _identifier(spark: SparkSession, name: TopicName) -> Any:
    return identifier(spark, [name.cluster + STATE_SUFFIX, name.topic])
