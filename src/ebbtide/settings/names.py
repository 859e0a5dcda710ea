"""Names of topics, `<cluster>.<topic>`, and of their tables.

A replica in another catalog than the lake is `<catalog>:<cluster>.<topic>`. A topic of an adopted
table with several topics is `<namespace>.<table>@<topic>` (docs/adr/0016).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ebbtide.errors import RequestError

CATALOG = "lake"
BATCHES_SUFFIX = "_batches"
QUARANTINE_SUFFIX = "_quarantine"
HELD_SUFFIX = "_held"
STATE_SUFFIX = "_state"
# Suffixes of the namespaces of ebbtide's own tables beside a cluster's namespace.
OWN_SUFFIXES = (BATCHES_SUFFIX, QUARANTINE_SUFFIX, HELD_SUFFIX, STATE_SUFFIX)
COMMITTED_SUFFIX = "__committed"
NULL_TOMBSTONES_SUFFIX = "__null_tombstones"
LATEST_SUFFIX = "__latest"
VIEW_SUFFIXES = (COMMITTED_SUFFIX, NULL_TOMBSTONES_SUFFIX, LATEST_SUFFIX)
OWN_NAMESPACE = "ebbtide"
# Between a table that holds several topics and one of them: in no Kafka name, and safe in paths.
IN_TABLE = "@"
# Ends the name of the table in which Redpanda keeps records that did not fit their topic's table.
DEAD_LETTERS = "~dlq"
# Kafka's own topics (Topic.isInternal): every broker has them, and nobody archives them unasked.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

# Kafka's legal names (Topic.validate); they become parts of paths. `.` and `..` are none.
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}", re.ASCII)
_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]{1,249}", re.ASCII)  # the same without a dot


class TopicName(NamedTuple):
    """A topic of a cluster. The cluster is a namespace, without a dot; a topic may have dots."""

    cluster: str
    topic: str
    catalog: str = CATALOG

    def __str__(self) -> str:
        name = f"{self.cluster}.{self.topic}"
        return name if self.catalog == CATALOG else f"{self.catalog}:{name}"

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Split at the first dot, and before it at a colon.

        Names that only adopted tables have are names too: `raw.events@orders`, `raw.orders~dlq`.
        """
        place, dot, topic = text.partition(".")
        catalog, colon, cluster = place.rpartition(":")
        if not (cluster and dot and topic) or (colon and not catalog):
            raise RequestError(f"expected <cluster>.<topic>, found {text!r}")
        if colon:
            check_catalog(catalog)
        table, at, of_table = topic.partition(IN_TABLE)
        cls.checked(cluster, table.removesuffix(DEAD_LETTERS))
        if at:
            cls.checked(cluster, of_table)
        return cls(cluster, topic, catalog or CATALOG)

    @classmethod
    def checked(cls, cluster: str, topic: str) -> TopicName:
        """Return a name that is neither one of a view nor of ebbtide's own tables."""
        is_own = cluster == OWN_NAMESPACE or cluster.endswith(OWN_SUFFIXES)
        if is_own or not _NAMESPACE.fullmatch(cluster):
            raise RequestError(
                "expected a cluster name of up to 249 ASCII letters, digits, _ and -, other than "
                f"{OWN_NAMESPACE!r} and not ending in {' or '.join(map(repr, OWN_SUFFIXES))}, "
                f"found {cluster!r}. Give the cluster another name"
            )
        if not _TOPIC.fullmatch(topic):
            raise RequestError(
                "expected a topic name that Kafka takes, of up to 249 ASCII letters, digits, ., _ "
                f"and -, and neither . nor .., found {topic!r}"
            )
        if topic.endswith(VIEW_SUFFIXES):
            raise RequestError(
                "expected a topic name without the suffix of a view "
                f"({', '.join(VIEW_SUFFIXES)}), found {topic!r}"
            )
        return cls(cluster, topic)

    @property
    def table(self) -> str:
        """The name of the records table, within its namespace."""
        return self.topic.partition(IN_TABLE)[0]

    @property
    def in_table(self) -> str | None:
        """The topic's name in a table of several topics, or None if it has its own table."""
        return self.topic.partition(IN_TABLE)[2] or None

    @property
    def whole_table(self) -> TopicName:
        """The table of several topics, named as a single topic."""
        return self._replace(topic=self.table)

    @property
    def records_table(self) -> str:
        """SQL identifier of the records table."""
        return quoted(self.catalog, self.cluster, self.table)

    @property
    def batches_table(self) -> str:
        """SQL identifier of the record batch table."""
        return quoted(self.catalog, self.cluster + BATCHES_SUFFIX, self.topic)

    @property
    def state_table(self) -> str:
        """SQL identifier of the table without rows whose properties are the topic's state."""
        return quoted(self.catalog, self.cluster + STATE_SUFFIX, self.topic)

    @property
    def quarantine_table(self) -> str:
        """SQL identifier of the quarantine table."""
        return quoted(self.catalog, self.cluster + QUARANTINE_SUFFIX, self.topic)

    @property
    def held_table(self) -> str:
        """SQL identifier of the table of held records."""
        return quoted(self.catalog, self.cluster + HELD_SUFFIX, self.topic)

    @property
    def committed_view(self) -> str:
        """SQL identifier of the read_committed view."""
        return quoted(self.catalog, self.cluster, self.topic + COMMITTED_SUFFIX)

    @property
    def null_tombstones_view(self) -> str:
        """SQL identifier of the view in which each tombstone has a null value."""
        return quoted(self.catalog, self.cluster, self.topic + NULL_TOMBSTONES_SUFFIX)

    @property
    def latest_view(self) -> str:
        """SQL identifier of the view that shows the latest value of each key."""
        return quoted(self.catalog, self.cluster, self.topic + LATEST_SUFFIX)

    def old_name(self, ending: str) -> str:
        """SQL identifier of a view of version 0.1, which ended in `__v1` or `__table`."""
        return quoted(self.catalog, self.cluster, f"{self.topic}__{ending}")


def check_catalog(catalog: str) -> None:
    """Raise RequestError if Spark's settings cannot name the catalog, or if it is a number."""
    if not _NAMESPACE.fullmatch(catalog):
        raise RequestError(
            f"expected a catalog name of ASCII letters, digits, _ and -, found {catalog!r}"
        )
    if catalog.isdigit():
        raise RequestError(f"expected the name of a catalog, found the number {catalog}")


def quoted(*parts: str) -> str:
    """Return a SQL identifier whose parts may hold any character."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def quoted_list(names: Iterable[str]) -> str:
    """Return names for a message."""
    return ", ".join(repr(name) for name in names)
