"""Read the lake through pyiceberg: in seconds, without a Spark session, and never writing.

The catalog is the one Spark uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ebbtide.errors import (
    AccessDeniedError,
    UnavailableError,
    UnknownTopicError,
    UnreadableTableError,
)
from ebbtide.lake.catalog_settings import (
    catalog_settings,
    defaults_path,
    open_catalog,
    read_defaults,
)
from ebbtide.lake.contents import (
    PartitionContents,
    contents_of_state,
    count_contents,
    summarize_contents,
)
from ebbtide.lake.live_files import of_a_store
from ebbtide.log.adopted.layout import LAYOUT
from ebbtide.log.adopted.shared_table import topic_properties
from ebbtide.log.attempts import RESULT, RUNS, Attempt, Run
from ebbtide.log.own_tables import OwnTable, R
from ebbtide.log.plans.events import PLAN_EVENTS, PlanEvent
from ebbtide.log.plans.plan import PLANS, Plan
from ebbtide.log.settings.names import (
    BATCHES_SUFFIX,
    CATALOG,
    HELD_SUFFIX,
    OWN_NAMESPACE,
    OWN_SUFFIXES,
    QUARANTINE_SUFFIX,
    STATE_SUFFIX,
    TopicName,
)
from ebbtide.log.settings.replicas import Replica, TableReplica
from ebbtide.log.state.snapshot_expiry import TableSnapshots
from ebbtide.log.state.topic import DescribedTopic
from ebbtide.log.state.topic_state import PREFIX as STATE_PREFIX
from ebbtide.log.state.topic_state import (
    check_layout_of_settings,
    settings_of,
    state_of,
    unsealed,
)
from ebbtide.log.state.topic_summary import TopicSummary

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table


# A topic's name is text on this side.
LakeTopic = DescribedTopic[str]


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of one catalog; without a catalog, an empty lake."""

    catalog: Catalog | None

    def topic_names(self) -> list[str]:
        """List every `<cluster>.<topic>` whose table is a topic or cannot be read, sorted."""
        if self.catalog is None:
            return []
        names = []
        namespaces = {cluster for cluster, *rest in self.catalog.list_namespaces() if not rest}
        for cluster in namespaces:
            if cluster != OWN_NAMESPACE and not cluster.endswith(OWN_SUFFIXES):
                names += self._topics_of(cluster, f"{cluster}{STATE_SUFFIX}" in namespaces)
        return sorted(names)

    def other_tables(self) -> list[str]:
        """List every `<namespace>.<table>` that is no topic's, sorted."""
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
        """List a cluster's topics; only a table without a state table has to be opened."""
        assert self.catalog is not None
        listed = self.catalog.list_tables(cluster + STATE_SUFFIX) if has_states else ()
        with_state = {TopicName(cluster, topic) for _, topic in listed}
        tables = {table for _, table in self.catalog.list_tables(cluster)}
        others = tables - {name.table for name in with_state}
        old = {t for t in others if _may_be_topic(self.catalog, (cluster, t))}
        return [str(of) for of in with_state if of.table in tables] + [
            f"{cluster}.{table}" for table in old
        ]

    def topic(self, name: str) -> LakeTopic:
        """Read one topic's settings and state; StateError where the state was edited by hand."""
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
        """Return the table of a topic's records that holds have kept."""
        return self._table(name, HELD_SUFFIX)

    def keeps_records(self, name: str) -> bool:
        """Return whether the topic has a table of records that holds have kept."""
        with suppress(UnknownTopicError):
            self.held(name)
            return True
        return False

    def runs(self, since: datetime | None = None, **equals: str | Sequence[str]) -> list[Run]:
        """Return rows of `runs` whose columns equal what is given (any of several), oldest first.

        Those that started at `since` or later: the table is kept by day, so that the files of all
        other days stay closed.
        """
        return sorted(self.own_rows(RUNS, since, **equals), key=_end)

    def attempts(
        self, since: datetime | None = None, **equals: str | Sequence[str]
    ) -> Sequence[Attempt]:
        """Return the same without results, which are most of a row's bytes."""
        return sorted(self.own_rows(RUNS, since, without=RESULT, **equals), key=_end)

    def plans(self, since: datetime | None = None, **equals: str | Sequence[str]) -> list[Plan]:
        """Return the plans whose columns equal what is given, made at `since` or later, in order.

        Their offsets are left out, which may be large: `plan` reads them.
        """
        return self.own_rows(PLANS, since, without=("removes",), **equals)

    def plan(self, plan_id: str) -> Plan | None:
        """Return one plan with its offsets; None where there is none of that id."""
        return next(iter(self.own_rows(PLANS, plan_id=plan_id)), None)

    def plan_events(
        self, since: datetime | None = None, **equals: str | Sequence[str]
    ) -> list[PlanEvent]:
        """Return what became of plans, oldest first: events whose columns equal what is given."""
        return self.own_rows(PLAN_EVENTS, since, **equals)

    def own_rows(
        self,
        table: OwnTable[R],
        since: datetime | None = None,
        without: Collection[str] = (),
        **equals: str | Sequence[str],
    ) -> list[R]:
        """Return rows of one of ebbtide's own tables whose columns equal what is given, in order.

        Those of `since` or later; none where nobody has created the table.
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
        """Return the same rows in no order, as pyarrow gives these columns of them."""
        with of_a_store(".".join(table.place)):
            opened = self.own_table(table)
            if opened is None:
                return []
            condition = chosen(table.day, since, equals)
            known = tuple(name for name in columns if name in opened.schema().column_names)
            rows = opened.scan(row_filter=condition, selected_fields=known).to_arrow()
            cells: list[dict[str, Any]] = rows.to_pylist()
            return cells

    def own_table(self, table: OwnTable[Any]) -> Table | None:
        """Return one of ebbtide's own tables; None where nobody has created it."""
        from pyiceberg.exceptions import NoSuchTableError

        if self.catalog is None:
            return None
        try:
            with of_a_store(".".join(table.place)):
                return self.catalog.load_table(table.place)
        except NoSuchTableError:
            return None

    def snapshots(self, name: str) -> dict[str, TableSnapshots]:
        """Return the snapshots of each of a topic's tables, as `tidied` notes them."""
        tables = {"records": self.records(name), "batches": self.batches(name)}
        with suppress(UnknownTopicError):
            tables["quarantine"] = self._table(name, QUARANTINE_SUFFIX)
        with suppress(UnknownTopicError):
            tables["held"] = self.held(name)
        return {what: _snapshots_of(table) for what, table in tables.items()}

    def is_adopted(self, name: str) -> bool:
        """Return whether others write the topic's table."""
        return LAYOUT in self.records(name).properties

    def contents(self, name: str) -> dict[int, PartitionContents]:
        """Return the contents of each partition that has files, from manifests alone.

        Of an adopted table, the state tells what the last night found. UnreadableTableError names
        the topic.
        """
        if self.is_adopted(name):
            states = self.topic(name).partitions
            return {p: contents_of_state(state) for p, state in states.items()}
        with reading_manifests(name):
            return count_contents(self.records(name), self.batches(name))

    def live_rows(self, name: str) -> dict[int, int]:
        """Count the live rows of the records table by partition, from manifests alone."""
        return {p: contents.records for p, contents in self.contents(name).items()}

    def summary(self, name: str) -> TopicSummary:
        """Return a topic in a few numbers, from its state and its manifests."""
        topic = self.topic(name)
        return summarize_contents(topic.config, topic.partitions, self.contents(name))

    def _table(self, name: str, suffix: str) -> Table:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        of = TopicName.parse(name)
        cluster, table = of.cluster, of.topic if suffix else of.table
        if of.catalog != CATALOG:
            raise UnknownTopicError(f"expected a topic of the lake, found {name}; it is a replica")
        if self.catalog is None:
            raise UnknownTopicError(f"expected a table for topic {name}, found an empty lake")
        try:
            with of_a_store(name):
                return self.catalog.load_table((cluster + suffix, table))
        except (NoSuchNamespaceError, NoSuchTableError):
            raise self._unknown(name) from None
        except (AccessDeniedError, UnavailableError):
            raise
        except Exception as error:  # of a catalog, a file system or the metadata's parser
            raise UnreadableTableError(
                f"expected the table of topic {name}{suffix} to open, found {_in_a_line(error)}; "
                "restore its metadata file, or drop the table"
            ) from error

    def _unknown(self, name: str) -> UnknownTopicError:
        known = ", ".join(self.topic_names()) or "no topic"
        return UnknownTopicError(
            f"expected a table for topic {name}, found none; the lake holds {known}"
        )


def find_replicas(topic: LakeTopic) -> list[LakeTopic] | None:
    """Return the topic's replicas, if all are tables that can be read from here; None where not."""
    replicas = [read_replica(topic, replica) for replica in topic.config.replicas]
    return None if None in replicas else [replica for replica in replicas if replica is not None]


def read_replica(topic: LakeTopic, replica: Replica) -> LakeTopic | None:
    """Return one of the topic's replicas; None where it is no table that can be read from here."""
    if not isinstance(replica, TableReplica):
        return None
    name = replica.of(TopicName.parse(topic.name))
    try:
        with open_lake(catalog=name.catalog) as lake:
            return lake.topic(str(name._replace(catalog=CATALOG)))
    except Exception:  # Spark may know catalogs that pyiceberg does not, and may reach further
        return None


@contextmanager
def open_lake(defaults: Path | None = None, catalog: str = CATALOG) -> Iterator[Lake]:
    """Open the lake that Spark's `defaults` file configures; $SPARK_CONF_DIR's if none is given."""
    settings = catalog_settings(read_defaults(defaults or defaults_path()), catalog)
    with open_catalog(settings, catalog) as opened:
        yield Lake(opened)


@contextmanager
def reading_manifests(name: str) -> Iterator[None]:
    """Raise UnreadableTableError for manifests that do not open, so that only this topic fails."""
    try:
        yield
    except (AccessDeniedError, UnavailableError):
        raise
    except Exception as error:  # of a file system or the manifest's parser
        raise UnreadableTableError(
            f"expected the manifests of topic {name} to open, found {_in_a_line(error)}; restore "
            "the file, or roll the table back to a snapshot that has all of its files"
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
    """Return whether a table without a state table is a topic's.

    One that cannot be read may be one. It is named, so that it fails by itself and no other does.
    """
    try:
        return _is_topic(catalog.load_table(identifier))
    except Exception:
        return True


def chosen(
    time: str, since: datetime | None, equals: Mapping[str, str | Sequence[str]]
) -> BooleanExpression:
    """Return the filter for rows whose `time` is `since` or later and that have these values."""
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
