"""Open tables of a catalog through Iceberg itself: Spark would analyse a statement for them.

A session opens each catalog and each table once. For each use it asks the catalog whether the table
has a new version, by one message to the JVM. Loading the table again takes dozens of messages, and
the JVM parses its metadata each time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.iceberg.metadata import Snapshot, TableMetadata
from ebbtide.settings.names import CATALOG, OWN_NAMESPACE
from ebbtide.spark.jvm import (
    ICEBERG,
    JavaMethod,
    as_dict,
    iceberg_class,
    items,
    java_array,
    java_class,
)
from ebbtide.stores.catalogs import kind_of
from ebbtide.stores.store import Store

_VENDING = ICEBERG + "io.SupportsStorageCredentials"


def store_of(spark: SparkSession, table: Any) -> Store:
    """Return a store with the settings of a table's FileIO and the credentials vended for it."""
    file_io = table.io()
    properties = as_dict(spark, file_io.properties())
    gateway = spark.sparkContext._gateway
    if is_instance_of(gateway, file_io, _VENDING):
        location = str(table.location())
        fitting = [c for c in items(file_io.credentials()) if location.startswith(str(c.prefix()))]
        for credential in sorted(fitting, key=lambda c: len(str(c.prefix()))):
            properties |= as_dict(spark, credential.config())
    return Store.of(properties)


def catalog_store(spark: SparkSession, catalog: str = CATALOG) -> Store:
    """Return a store with the settings of a Spark catalog, for files outside its tables."""
    return Store.of(_settings_of(spark, catalog))


def check_catalog(spark: SparkSession, catalog: str = CATALOG) -> None:
    """Raise ConfigurationError if Airflow's side or the tasks cannot follow a catalog's settings.

    The catalog is not opened, because a JDBC catalog creates its own tables when opened.
    """
    kind_of(_settings_of(spark, catalog), f"spark.sql.catalog.{catalog}.")
    catalog_store(spark, catalog)


def _settings_of(spark: SparkSession, catalog: str) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{catalog}."
    settings = as_dict(spark, spark.conf._jconf.getAllAsJava())
    return {n.removeprefix(prefix): settings[n] for n in settings if n.startswith(prefix)}


_MISSING = (
    "org.apache.iceberg.exceptions.NoSuchTableException",
    "org.apache.iceberg.exceptions.NoSuchNamespaceException",
)
# Raised by a refresh if the table was dropped and created again, with another id.
_OTHER_TABLE = "java.lang.IllegalStateException"
# Raised by a refresh after an earlier one found that the table was dropped: it has no version now.
_WITHOUT_VERSION = "java.lang.NullPointerException"
_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
# A REST catalog may vend credentials with a table, and they expire.
_OPEN_FOR_S = 60.0
_KNOWN = "_ebbtide_known"  # an attribute of Spark's session


class _Opened:
    """Iceberg's object of a table, which moves on to new versions, and the last version read.

    Threads may share it.
    """

    def __init__(self, spark: SparkSession, java: Any) -> None:
        self.spark, self.java = spark, java
        self.opened_at = time.monotonic()
        self.kept: dict[object, Any] = {}
        self._lock = Lock()
        self._metadata: TableMetadata | None = None
        operations = java.operations()
        refresh = JavaMethod.of(spark, ICEBERG + "TableOperations", "refresh")
        current = JavaMethod.of(spark, ICEBERG + "TableOperations", "current")
        metadata = ICEBERG + "TableMetadata"
        file = JavaMethod.of(spark, metadata, "metadataFileLocation")
        to_json = JavaMethod.of(spark, ICEBERG + "TableMetadataParser", "toJson", metadata)
        self._file_now = refresh.then(file).on(operations)
        self._json = current.then(to_json).on(operations)
        self._file = str(current.then(file).on(operations).call())

    @cached_property
    def store(self) -> Store:
        """The store that opens the table's files outside Iceberg."""
        return store_of(self.spark, self.java)

    @property
    def is_young(self) -> bool:
        """True if the table was opened recently enough for its vended credentials to be valid."""
        return time.monotonic() - self.opened_at < _OPEN_FOR_S

    def refresh(self) -> None:
        """Ask the catalog for the newest version."""
        with self._lock:
            file = str(self._file_now.call())
            if file != self._file:
                self._file, self._metadata = file, None

    def metadata(self) -> TableMetadata:
        """Return the metadata of the newest version as of the last refresh."""
        with self._lock:
            if self._metadata is None:
                self._metadata = TableMetadata.parse(self._file, str(self._json.call()))
            return self._metadata


# Iceberg: TableProperties. The second is an older name of the first, for object stores.
OTHER_LOCATIONS = ("write.data.path", "write.object-storage.path", "write.metadata.path")


class Table:
    """A table at one version: the newest when it was opened.

    Iceberg's object `java` moves on: its commits build on the version that is newest then.
    """

    __slots__ = ("_opened", "metadata", "name", "spark")

    def __init__(self, name: str, opened: _Opened, metadata: TableMetadata) -> None:
        self.spark, self.name = opened.spark, name  # as a quoted SQL identifier
        self._opened, self.metadata = opened, metadata

    def __str__(self) -> str:
        return ".".join(parts_of(self.name))

    @property
    def java(self) -> Any:
        """Iceberg's own object of the table."""
        return self._opened.java

    @property
    def store(self) -> Store:
        """The store that opens the table's files, by the settings of its FileIO."""
        return self._opened.store

    @property
    def locations(self) -> list[str]:
        """The folders of the table's files: its location, and those that its properties name."""
        found = [str(self.metadata.values["location"]).rstrip("/")]
        for name in OTHER_LOCATIONS:
            named = self.metadata.properties.get(name, found[0]).rstrip("/")
            # One folder can be spelled in several ways, such as file:/a and file:///a.
            if named not in found and not any(self._is_below(named, each) for each in found):
                found.append(named)
        return found

    def _is_below(self, folder: str, other: str) -> bool:
        (_, path), (_, above) = self.store.resolve(folder), self.store.resolve(other)
        return f"{path}/".startswith(f"{above}/")

    @property
    def kept(self) -> dict[object, Any]:
        """Cache for contents of the table's files, which never change. Only for small tables."""
        return self._opened.kept

    @property
    def current(self) -> Snapshot | None:
        """The newest snapshot, or None if nothing was ever written to the table."""
        return self.metadata.current


class _Known:
    """The catalogs and tables that a session has opened.

    Sessions for topics share the catalogs, and the tables that are not a topic's.
    """

    def __init__(self) -> None:
        self.catalogs: dict[str, Any] = {}
        self.tables: dict[str, _Opened] = {}
        self.of_no_topic = self.tables

    def tables_with(self, name: str) -> dict[str, _Opened]:
        """Return the group of open tables that a table belongs to: shared, or the session's own."""
        _, namespace, *_ = parts_of(name)
        return self.of_no_topic if namespace == OWN_NAMESPACE else self.tables


def _known_of(spark: SparkSession) -> _Known:
    """Return the catalogs and tables that the session has opened.

    They are an attribute of the session, so that both end together.
    """
    known: _Known | None = getattr(spark, _KNOWN, None)
    if known is None:
        known = _Known()
        setattr(spark, _KNOWN, known)
    return known


@contextmanager
def session_for_topic(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a new session that shares the open catalogs of `spark`."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")  # overrides the cluster's defaults
    set_active(session)
    known = _known_of(session)
    shared = _known_of(spark)
    known.catalogs, known.of_no_topic = shared.catalogs, shared.of_no_topic
    try:
        yield session
    finally:
        if known is not shared:
            known.tables.clear()


def open_table(spark: SparkSession, name: str) -> Table:
    """Open the newest version of a table, given as a quoted SQL identifier."""
    opened = _newest(spark, name)
    return Table(name, opened, opened.metadata())


def _newest(spark: SparkSession, name: str) -> _Opened:
    tables = _known_of(spark).tables_with(name)
    opened = tables.get(name)
    if opened is not None and opened.is_young:
        try:
            opened.refresh()
            return opened
        except Py4JJavaError as error:
            if cause_of(error) not in (*_MISSING, _OTHER_TABLE, _WITHOUT_VERSION):
                raise
    tables.pop(name, None)
    opened = tables[name] = _opened(spark, name)
    return opened


def open_apart(spark: SparkSession, name: str) -> Table:
    """Open a table with an Iceberg object of its own, which nothing else in the process uses."""
    opened = _opened(spark, name)
    return Table(name, opened, opened.metadata())


def _opened(spark: SparkSession, name: str) -> _Opened:
    catalog, *names = parts_of(name)
    return _Opened(spark, iceberg_catalog(spark, catalog).loadTable(identifier(spark, names)))


def find_table(spark: SparkSession, name: str) -> Table | None:
    """Open the newest version of a table, or return None if it does not exist."""
    # To ask whether a table exists costs less than the error if it does not.
    is_known = name in _known_of(spark).tables_with(name)
    if not (is_known or table_exists(spark, name)):
        return None
    try:
        return open_table(spark, name)
    except Py4JJavaError as error:
        if cause_of(error) in _MISSING:
            return None
        raise


def table_exists(spark: SparkSession, name: str) -> bool:
    """Return whether a table exists, given as a quoted SQL identifier. A view is not a table."""
    catalog, *names = parts_of(name)
    return bool(iceberg_catalog(spark, catalog).tableExists(identifier(spark, names)))


def java_table(spark: SparkSession, name: str) -> Any:
    """Return Iceberg's own object of the newest version of a table."""
    return _newest(spark, name).java


# JdbcCatalog asks for a column and adds it in two steps.
_IN_A_NEW_DATABASE = "Cannot check and eventually update SQL schema"


def iceberg_catalog(spark: SparkSession, name: str) -> Any:
    """Return Iceberg's catalog behind a Spark catalog.

    Raise ConfigurationError if it is the lake's catalog and ebbtide refuses its settings.
    """
    catalogs = _known_of(spark).catalogs
    if name not in catalogs:
        if name == CATALOG:
            check_catalog(spark)
        set_active(spark)  # the helper ignores its argument and uses the active session
        load = iceberg_class(spark, "spark.Spark3Util").loadIcebergCatalog
        try:
            catalogs[name] = load(spark._jsparkSession, name)
        except Py4JJavaError as error:  # another job opened a new database at the same time
            if _IN_A_NEW_DATABASE not in str(error.java_exception.getMessage()):
                raise
            catalogs[name] = load(spark._jsparkSession, name)
    return catalogs[name]


def set_active(spark: SparkSession) -> None:
    """Make this the thread's active session: some of Iceberg's classes use no other."""
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(spark._jsparkSession)


def identifier(spark: SparkSession, names: Sequence[str]) -> Any:
    """Return Iceberg's identifier of a table; its names may contain any character."""
    return iceberg_class(spark, "catalog.TableIdentifier").of(java_array(spark, names))


def parts_of(name: str) -> list[str]:
    """Return the parts of a SQL identifier, quoted or not."""
    return [plain or quoted.replace("``", "`") for quoted, plain in _PART.findall(name)]


def cause_of(error: Py4JJavaError) -> str:
    """Return the Java class name of an error."""
    return str(error.java_exception.getClass().getName())
