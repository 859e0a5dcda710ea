"""The lake's tables, read through pyiceberg in seconds, without a Spark session.

It uses Spark's catalog. It writes nothing, except for the file of `probe_storage`.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

from ebbtide.errors import (
    AccessDeniedError,
    ConfigurationError,
    UnavailableError,
    UnknownTopicError,
    UnreadableTableError,
)
from ebbtide.lake.catalog_settings import (
    FILE_IO,
    catalog_settings,
    defaults_path,
    open_catalog,
    read_defaults,
)
from ebbtide.layouts.layout import LAYOUT, topic_properties
from ebbtide.layouts.topic import DescribedTopic
from ebbtide.ledger.own_tables import RESULT, RUNS, Attempt, OwnTable, R, Run
from ebbtide.ledger.plans import PLAN_EVENTS, PLANS, Plan, PlanEvent
from ebbtide.ledger.topic_summary import TableSnapshots, TopicSummary, summarize
from ebbtide.settings.config import TopicConfig
from ebbtide.settings.names import (
    BATCHES_SUFFIX,
    CATALOG,
    HELD_SUFFIX,
    OWN_NAMESPACE,
    OWN_SUFFIXES,
    QUARANTINE_SUFFIX,
    STATE_SUFFIX,
    TopicName,
)
from ebbtide.settings.upstream import Replica, TableReplica
from ebbtide.state.topic_state import PREFIX as STATE_PREFIX
from ebbtide.state.topic_state import (
    PartitionState,
    check_layout_of_settings,
    settings_of,
    state_of,
    unsealed,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


@contextmanager
def of_a_store(table: str) -> Iterator[None]:
    """Raise an EbbtideError if the store of a table's files refuses access or does not answer."""
    from ebbtide.stores.store import failing_clearly  # imports pyarrow

    with failing_clearly(table):
        yield


def files_of(table: Table) -> Iterator[Any]:
    """Yield the data and delete files of the table's current snapshot."""
    snapshot = table.current_snapshot()
    with of_a_store(".".join(table.name())):
        for manifest in snapshot.manifests(table.io) if snapshot else ():
            yield from _live_files(table, manifest.manifest_path)


def _live_files(table: Table, manifest_path: str) -> Iterator[Any]:
    from pyiceberg import manifest as m
    from pyiceberg.avro.file import AvroFile

    types: Any = {-1: m.ManifestEntry, 2: m.DataFile}
    enums: Any = {0: m.ManifestEntryStatus, 101: m.FileFormat, 134: m.DataFileContent}
    schema = m.MANIFEST_ENTRY_SCHEMAS[3]
    source = table.io.new_input(manifest_path)
    with AvroFile[Any](source, schema, read_types=types, read_enums=enums) as entries:
        for entry in entries:
            if entry.status != m.ManifestEntryStatus.DELETED:
                yield entry.data_file


def referenced_data_file(vector: Any) -> str:
    """Return a deletion vector's data file. pyiceberg 0.12 reads this v3 field without a name."""
    path: str = vector._data[-3]
    return path


def vector_bytes(vector: Any) -> int:
    """Return a deletion vector's own bytes, also a v3 field without a name."""
    size_bytes: int = vector._data[-1]
    return size_bytes


EVENT_TIME = "event_time"


@dataclass(slots=True)
class PartitionContents:
    """A partition's contents, from manifests."""

    records: int = 0  # live records
    file_bytes: int = 0  # of both tables' files
    # Lower bound: a file keeps the time of a removed record until it is rewritten or empty.
    oldest_event_ms: int | None = None


def count_contents(records: Table, batches: Table) -> dict[int, PartitionContents]:
    """Return the contents of each partition that has files. Read each manifest once."""
    contents: defaultdict[int, PartitionContents] = defaultdict(PartitionContents)
    _add_records(contents, records)
    for file in files_of(batches):
        contents[file.partition[0]].file_bytes += file.file_size_in_bytes
    return dict(contents)


def contents_of_state(state: PartitionState) -> PartitionContents:
    """Return a partition's contents at the last job on an adopted table."""
    return PartitionContents(
        records=sum(sums.record_count for sums in state.sums),
        file_bytes=sum(sums.size_bytes for sums in state.sums),
    )


def summarize_contents(
    config: TopicConfig,
    states: Mapping[int, PartitionState],
    contents: Mapping[int, PartitionContents],
) -> TopicSummary:
    """Return a topic's summary. Manifests do not show dirty records, so it has no dirty share."""
    oldest = (of_partition.oldest_event_ms for of_partition in contents.values())
    return summarize(
        config,
        states,
        {(p, sys.maxsize): of_partition.records for p, of_partition in contents.items()},
        sum(of_partition.file_bytes for of_partition in contents.values()),
        partitions={},
        topic={},
        oldest_event_ms=min((ms for ms in oldest if ms is not None), default=None),
    )


def _add_records(contents: Mapping[int, PartitionContents], table: Table) -> None:
    from pyiceberg.manifest import DataFileContent

    event_time = table.schema().find_field(EVENT_TIME).field_id
    data: list[Any] = []
    deleted: dict[str, int] = {}
    for file in files_of(table):
        partition = contents[file.partition[0]]
        if file.content == DataFileContent.DATA:
            data.append(file)
            partition.file_bytes += file.file_size_in_bytes
        else:
            deleted[referenced_data_file(file)] = file.record_count  # may outlive its data file
            partition.file_bytes += vector_bytes(file)  # one file has vectors of several data files
    for file in data:
        partition = contents[file.partition[0]]
        records = file.record_count - deleted.get(file.file_path, 0)
        partition.records += records
        if records:
            _add_event(partition, file.lower_bounds.get(event_time))


def _add_event(partition: PartitionContents, lower_bound: bytes | None) -> None:
    """Update the oldest event with a file's lower bound: microseconds, little-endian."""
    if lower_bound is not None:
        ms = int.from_bytes(lower_bound, "little", signed=True) // 1000
        oldest = partition.oldest_event_ms
        partition.oldest_event_ms = ms if oldest is None else min(oldest, ms)


# On this side, a topic's name is a string.
LakeTopic = DescribedTopic[str]


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of one catalog."""

    catalog: Catalog | None  # None: an empty lake

    def topic_names(self) -> list[str]:
        """Return the sorted names `<cluster>.<topic>` of all topics and unreadable tables."""
        if self.catalog is None:
            return []
        names = []
        namespaces = {cluster for cluster, *rest in self.catalog.list_namespaces() if not rest}
        for cluster in namespaces:
            if cluster != OWN_NAMESPACE and not cluster.endswith(OWN_SUFFIXES):
                names += self._topics_of(cluster, f"{cluster}{STATE_SUFFIX}" in namespaces)
        return sorted(names)

    def other_tables(self) -> list[str]:
        """Return the sorted names `<namespace>.<table>` of all tables that are no topics."""
        if self.catalog is None:
            return []
        topics = set(self.topic_names())
        namespaces = [name for name, *rest in self.catalog.list_namespaces() if not rest]
        names = (
            f"{namespace}.{table}"
            for namespace in namespaces
            if namespace != OWN_NAMESPACE and not namespace.endswith(OWN_SUFFIXES)
            for _, table in self.catalog.list_tables(namespace)
        )
        return sorted(name for name in names if name not in topics)

    def _topics_of(self, cluster: str, has_states: bool) -> list[str]:
        """Return the names of a cluster's topics. Open only tables without a state table."""
        assert self.catalog is not None
        listed = self.catalog.list_tables(cluster + STATE_SUFFIX) if has_states else ()
        with_state = {TopicName(cluster, topic) for _, topic in listed}
        tables = {table for _, table in self.catalog.list_tables(cluster)}
        others = tables - {name.table for name in with_state}
        old = {t for t in others if _may_be_topic(self.catalog, (cluster, t))}
        return [str(topic_name) for topic_name in with_state if topic_name.table in tables] + [
            f"{cluster}.{table}" for table in old
        ]

    def topic(self, name: str) -> LakeTopic:
        """Read one topic's settings and state. Raise StateError if the state was edited by hand."""
        properties = topic_properties(TopicName.parse(name), self.records(name).properties)
        state = self._state(name)
        if state is None:
            check_layout_of_settings(name, properties)
            return LakeTopic(name, properties)
        return LakeTopic(name, {**settings_of(properties), **unsealed(name, state)})

    def _state(self, name: str) -> dict[str, str] | None:
        try:
            return state_of(self._table(name, STATE_SUFFIX).properties)
        except UnknownTopicError:
            return None

    def records(self, name: str) -> Table:
        """Return the records table of a topic."""
        return self._table(name, "")

    def batches(self, name: str) -> Table:
        """Return the batches table of a topic."""
        return self._table(name, BATCHES_SUFFIX)

    def held(self, name: str) -> Table:
        """Return the table with the copies of a topic's records that were made for holds."""
        return self._table(name, HELD_SUFFIX)

    def keeps_records(self, name: str) -> bool:
        """Return whether the topic has a table with copies for holds."""
        with suppress(UnknownTopicError):
            self.held(name)
            return True
        return False

    def runs(self, since: datetime | None = None, **equals: str | Sequence[str]) -> list[Run]:
        """Return rows of `runs` that started at or after `since`, oldest first.

        Each column in `equals` must have the given value, or one of several. The table is
        partitioned by day, so only files of these days are opened.
        """
        return sorted(self.own_rows(RUNS, since, **equals), key=_end)

    def attempts(
        self, since: datetime | None = None, **equals: str | Sequence[str]
    ) -> Sequence[Attempt]:
        """Return rows of `runs`, like `runs`, but without results: these are most of the bytes."""
        return sorted(self.own_rows(RUNS, since, without=RESULT, **equals), key=_end)

    def plans(self, since: datetime | None = None, **equals: str | Sequence[str]) -> list[Plan]:
        """Return the plans made at or after `since` whose columns equal `equals`, in order.

        They have no offsets, because these can be large: `plan` reads them.
        """
        return self.own_rows(PLANS, since, without=("removes",), **equals)

    def plan(self, plan_id: str) -> Plan | None:
        """Return the plan with this id, with its offsets, or None if there is none."""
        return next(iter(self.own_rows(PLANS, plan_id=plan_id)), None)

    def plan_events(
        self, since: datetime | None = None, **equals: str | Sequence[str]
    ) -> list[PlanEvent]:
        """Return the events of plans whose columns equal `equals`, oldest first."""
        return self.own_rows(PLAN_EVENTS, since, **equals)

    def own_rows(
        self,
        table: OwnTable[R],
        since: datetime | None = None,
        without: Collection[str] = (),
        **equals: str | Sequence[str],
    ) -> list[R]:
        """Return rows of one of ebbtide's own tables at or after `since`, in order.

        Each column in `equals` must have the given value, or one of several. If the table does not
        exist yet, return none.
        """
        columns = table.types.keys() - without
        rows = map(table.to_row, self.own_cells(table, columns, since, **equals))
        return sorted(rows, key=attrgetter(table.day))

    def own_cells(
        self,
        table: OwnTable[Any],
        columns: Collection[str],
        since: datetime | None = None,
        **equals: str | Sequence[str],
    ) -> list[dict[str, Any]]:
        """Return rows like `own_rows`, but unsorted, as dicts of these columns from pyarrow."""
        with of_a_store(".".join(table.place)):
            opened = self.own_table(table)
            if opened is None:
                return []
            if not equals.keys() <= set(opened.schema().column_names):
                return []  # a table of an older version: no row has such a value
            condition = chosen(table.day, since, equals)
            known = tuple(name for name in columns if name in opened.schema().column_names)
            rows = opened.scan(row_filter=condition, selected_fields=known).to_arrow()
            cells: list[dict[str, Any]] = rows.to_pylist()
            return cells

    def own_table(self, table: OwnTable[Any]) -> Table | None:
        """Return one of ebbtide's own tables, or None if it does not exist yet."""
        from pyiceberg.exceptions import NoSuchTableError

        if self.catalog is None:
            return None
        try:
            with of_a_store(".".join(table.place)):
                return self.catalog.load_table(table.place)
        except NoSuchTableError:
            return None

    def snapshots(self, name: str) -> dict[str, TableSnapshots]:
        """Return the snapshots of each of a topic's tables, for comparison with `tidied`."""
        tables = {"records": self.records(name), "batches": self.batches(name)}
        with suppress(UnknownTopicError):
            tables["quarantine"] = self._table(name, QUARANTINE_SUFFIX)
        with suppress(UnknownTopicError):
            tables["held"] = self.held(name)
        return {what: _snapshots_of(table) for what, table in tables.items()}

    def is_adopted(self, name: str) -> bool:
        """Return whether the topic is adopted."""
        return LAYOUT in self.records(name).properties

    def contents(self, name: str) -> dict[int, PartitionContents]:
        """Return the contents of each partition that has files, from manifests alone.

        For an adopted table, return the contents at the last job, from the topic's state. Raise
        UnreadableTableError if a manifest cannot be read.
        """
        if self.is_adopted(name):
            states = self.topic(name).partitions
            return {p: contents_of_state(state) for p, state in states.items()}
        with reading_manifests(name):
            return count_contents(self.records(name), self.batches(name))

    def live_rows(self, name: str) -> dict[int, int]:
        """Return the number of live records by partition, from manifests alone."""
        return {p: contents.records for p, contents in self.contents(name).items()}

    def summary(self, name: str) -> TopicSummary:
        """Return a topic's summary, from its state and its manifests."""
        topic = self.topic(name)
        return summarize_contents(topic.config, topic.partitions, self.contents(name))

    def _table(self, name: str, suffix: str) -> Table:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        topic_name = TopicName.parse(name)
        cluster, table = topic_name.cluster, topic_name.topic if suffix else topic_name.table
        if topic_name.catalog != CATALOG:
            raise UnknownTopicError(
                f"expected a topic of the lake, found the replica {name}. Name its primary"
            )
        if self.catalog is None:
            raise UnknownTopicError(
                f"expected a table for topic {name}, found an empty lake. Ingest the topic first"
            )
        try:
            with of_a_store(name):
                return self.catalog.load_table((cluster + suffix, table))
        except (NoSuchNamespaceError, NoSuchTableError):
            raise self._unknown(name) from None
        except (AccessDeniedError, UnavailableError):
            raise
        except Exception as error:  # of a catalog, a file system or the metadata's parser
            raise UnreadableTableError(
                f"expected a readable table of topic {name}{suffix}, found {_in_a_line(error)}. "
                "Restore its metadata file, or drop the table"
            ) from error

    def _unknown(self, name: str) -> UnknownTopicError:
        known = ", ".join(self.topic_names()) or "no topic"
        return UnknownTopicError(
            f"expected a table for topic {name}, found none. The lake has {known}"
        )


def find_replicas(topic: LakeTopic) -> list[LakeTopic] | None:
    """Return the topic's replicas, or None if this side cannot read all of them."""
    replicas = [read_replica(topic, replica) for replica in topic.config.replicas]
    return None if None in replicas else [replica for replica in replicas if replica is not None]


def read_replica(topic: LakeTopic, replica: Replica) -> LakeTopic | None:
    """Return one of the topic's replicas, or None if this side cannot read it."""
    if not isinstance(replica, TableReplica):
        return None
    name = replica.of(TopicName.parse(topic.name))
    try:
        with open_lake(catalog=name.catalog) as lake:
            return lake.topic(str(name._replace(catalog=CATALOG)))
    except Exception:  # Spark may know more catalogs than pyiceberg, and reach more networks
        return None


@contextmanager
def open_lake(defaults: Path | None = None, catalog: str = CATALOG) -> Iterator[Lake]:
    """Open the lake that the file `defaults` configures, or else $SPARK_CONF_DIR's."""
    settings = catalog_settings(read_defaults(defaults or defaults_path()), catalog)
    with open_catalog(settings, catalog) as opened:
        yield Lake(opened)


@contextmanager
def reading_manifests(name: str) -> Iterator[None]:
    """Raise UnreadableTableError if a manifest cannot be read, so that only this topic fails."""
    try:
        yield
    except (AccessDeniedError, UnavailableError):
        raise
    except Exception as error:  # of a file system or the manifest's parser
        raise UnreadableTableError(
            f"expected readable manifests of topic {name}, found {_in_a_line(error)}. Restore the "
            "file, or roll the table back to a snapshot that has all of its files"
        ) from error


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _snapshots_of(table: Table) -> TableSnapshots:
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    times_ms = [s.timestamp_ms for s in table.snapshots() if s.snapshot_id not in named]
    return TableSnapshots(table.metadata.current_snapshot_id, min(times_ms, default=None))


def _is_topic(table: Table) -> bool:
    return any(key.startswith((STATE_PREFIX, "kafka.")) for key in table.properties)


def _may_be_topic(catalog: Catalog, identifier: tuple[str, str]) -> bool:
    """Return whether a table without a state table is a topic, or cannot be read.

    An unreadable table is listed as a topic, so that it fails alone and not the whole list.
    """
    try:
        return _is_topic(catalog.load_table(identifier))
    except Exception:
        return True


def chosen(
    time: str, since: datetime | None, equals: Mapping[str, str | Sequence[str]]
) -> BooleanExpression:
    """Return the filter for rows whose column `time` is at or after `since`, with these values."""
    from pyiceberg import expressions

    is_in, is_from = cast(Any, expressions.In), cast(Any, expressions.GreaterThanOrEqual)
    condition: BooleanExpression = expressions.AlwaysTrue()
    if since is not None:
        condition = is_from(time, since.isoformat())
    for column, value in equals.items():
        condition = expressions.And(
            condition, is_in(column, [value] if isinstance(value, str) else value)
        )
    return condition


def _end(attempt: Attempt) -> tuple[datetime, datetime]:
    return attempt.ended, attempt.started


CONTENT = b"ebbtide doctor"


class ProbedFile(NamedTuple):
    """The result of `probe_storage`."""

    folder: str
    seconds_behind: float | None  # the storage's clock behind this machine's; None if unknown


def probe_storage(lake: Lake) -> ProbedFile:
    """Write a file to the lake's storage, read it and delete it.

    Raise AccessDeniedError or UnavailableError if the storage refuses or does not answer.
    """
    from ebbtide.stores.store import failing_clearly

    files, folder = _storage_of(lake)
    path = f"{folder.rstrip('/')}/ebbtide-doctor-{uuid4().hex}"
    with failing_clearly(path):
        with files.new_output(path).create() as written:
            written.write(CONTENT)
        written_at = _clock()
        try:
            with files.new_input(path).open() as opened:
                content = opened.read()
            modified = _modified(files, path)
        finally:
            files.delete(path)
    if content != CONTENT:
        raise UnavailableError(f"expected the bytes just written to {path}, found different bytes")
    return ProbedFile(folder, None if modified is None else written_at - modified)


def _clock() -> float:
    """Return this machine's time in seconds since the epoch."""
    return time.time()


def _storage_of(lake: Lake) -> tuple[FileIO, str]:
    """Return the catalog's FileIO and a folder of ebbtide: of `runs`, or else the warehouse."""
    from pyiceberg.io import load_file_io

    if (table := lake.own_table(RUNS)) is not None:
        return table.io, f"{table.location()}/data"
    settings = catalog_settings(read_defaults(defaults_path()))
    warehouse = settings.get("warehouse")
    if not warehouse:
        raise ConfigurationError(
            "expected a warehouse in the catalog's settings or a table in it, found neither. "
            "The first ingest creates a table"
        )
    return load_file_io({**settings, **FILE_IO}, warehouse), warehouse


def _modified(files: Any, path: str) -> float | None:
    """Return the file's time by the storage's clock, in seconds since the epoch, or None."""
    scheme, host, inside = files.parse_location(path, files.properties)
    modified = files.fs_by_scheme(scheme, host).get_file_info(inside).mtime
    return None if modified is None else float(modified.timestamp())
