"""The layout of an adopted or copied table: which column has which part of a record.

Columns are identified by Iceberg's field ids, so a renamed column stays the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from ebbtide.errors import ConfigurationError, NotCoveredError, UnknownTopicError
from ebbtide.numbers import whole
from ebbtide.settings.config import by_new_names, without_old_names
from ebbtide.settings.names import IN_TABLE, TopicName, quoted_list
from ebbtide.state.topic_state import parse_property

# On the adopted table: its layout as JSON.
LAYOUT = "ebbtide.layout"
# Iceberg types that its Spark runtime cannot read.
_UNREADABLE = frozenset({"time", "timestamp_ns", "timestamptz_ns"})
_INNER_TYPE = re.compile(r'"(?:type|element|key|value)": "(\w+)"')


class Column(NamedTuple):
    """A column of an Iceberg schema; the path of a nested column has several names."""

    path: tuple[str, ...]
    field_id: int
    type: str  # Iceberg's name of the type; `struct`, `list` or `map` if nested
    type_id: str  # the whole type, as JSON if nested

    @property
    def unreadable(self) -> str:
        """The type in this column that Spark cannot read, or "" if Spark reads the whole column."""
        types = [self.type, *(_INNER_TYPE.findall(self.type_id) if self.type != "struct" else ())]
        return next((type_name for type_name in types if type_name in _UNREADABLE), "")

    @property
    def name(self) -> str:
        """The path as Iceberg writes it: names with dots between them."""
        return ".".join(self.path)


class Columns(NamedTuple):
    """The columns of an Iceberg schema, nested ones in structs included."""

    all: Sequence[Column]

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Columns:
        """Read a schema in Iceberg's JSON form (table spec, appendix C)."""
        return cls(list(_columns((), schema)))

    @classmethod
    def readable(cls, schema: Mapping[str, Any], table: str) -> Columns:
        """Read the schema of a table. Raise NotCoveredError for a column that Spark cannot read."""
        columns = cls.of(schema)
        unreadable = [
            f"{column.name} ({found})" for column in columns.all if (found := column.unreadable)
        ]
        if unreadable:
            raise NotCoveredError(
                f"expected columns of {table} that Spark can read, found {', '.join(unreadable)}. "
                "Spark cannot open a table with such a column. Drop the column, or let its writer "
                "use another type, such as a timestamp in microseconds"
            )
        return columns

    def named(self, name: str) -> Column | None:
        """Return a column by its dotted name, or None."""
        return next((column for column in self.all if column.name == name), None)

    def with_id(self, field_id: int) -> Column | None:
        """Return a column by its field id, or None."""
        return next((column for column in self.all if column.field_id == field_id), None)

    @property
    def top(self) -> list[Column]:
        """The columns that are not nested in another one."""
        return [column for column in self.all if len(column.path) == 1]


def _columns(path: tuple[str, ...], struct: Mapping[str, Any]) -> Iterator[Column]:
    for field in struct["fields"]:
        kind, field_path = field["type"], (*path, field["name"])
        is_nested = isinstance(kind, Mapping)
        text = json.dumps(kind, sort_keys=True) if is_nested else kind
        yield Column(field_path, field["id"], kind["type"] if is_nested else kind, text)
        if is_nested and kind["type"] == "struct":
            yield from _columns(field_path, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The field ids of a record's parts; None for a part that the table does not have.

    A record is a tombstone if its `values` are all null, or if its `mark` has the text `mark_text`.
    """

    profile: str
    partition: int
    offset: int
    timestamp: int
    key: int | None = None
    topic: int | None = None
    topic_name: str | None = None  # the only topic in the topic column
    values: tuple[int, ...] = ()
    headers: int | None = None  # only to copy rows; no rule needs them
    mark: int | None = None
    mark_text: str | None = None
    is_shared: bool = False  # each value of the topic column is a topic of its own

    @property
    def has_tombstones(self) -> bool:
        """True if a column marks tombstones."""
        return bool(self.values) or self.mark is not None

    def to_json(self) -> str:
        """Return the value of the property `ebbtide.layout`."""
        return json.dumps(self.to_values())

    def to_values(self) -> dict[str, Any]:
        """Return the layout as JSON values, without empty ones."""
        return {
            name: value for name, value in asdict(self).items() if value not in (None, (), False)
        }

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read the layout from the property.

        Raise ConfigurationError if the text is not a layout.
        """
        return parse_property(LAYOUT, text, "a layout that adopt_table wrote", cls.of_values)

    @classmethod
    def of_values(cls, values: Any) -> Layout:
        """Read the layout from the result of `to_values`. Raise any error if it is malformed."""
        ids = {name: whole(value) for name, value in values.items() if name in _IDS}
        texts = {name: str(value) for name, value in values.items() if name in _TEXTS}
        if unknown := values.keys() - ids.keys() - texts.keys() - {"values", "is_shared"}:
            raise KeyError(next(iter(unknown)))
        of_value = tuple(whole(value) for value in values.get("values", ()))
        is_shared = values.get("is_shared", False) is True
        built: Any = {**ids, **texts, "values": of_value, "is_shared": is_shared}
        return cls(**built)


_IDS = frozenset({"partition", "offset", "timestamp", "key", "topic", "headers", "mark"})
_TEXTS = frozenset({"profile", "topic_name", "mark_text"})


class NamedLayout(NamedTuple):
    """A layout in a table's current schema: each part's column."""

    partition: Column
    offset: Column
    timestamp: Column
    key: Column | None
    topic: Column | None
    values: Sequence[Column]
    mark: Column | None
    headers: Column | None = None

    @classmethod
    def of(cls, layout: Layout, columns: Columns, table: str) -> NamedLayout:
        """Find the layout's columns. Raise ConfigurationError if one of them was dropped."""
        found: dict[str, Any] = {}
        dropped = []
        for part in _IDS:
            field_id = getattr(layout, part)
            found[part] = None if field_id is None else columns.with_id(field_id)
            if field_id is not None and found[part] is None:
                dropped.append(part)
        values = [columns.with_id(field_id) for field_id in layout.values]
        if None in values:
            dropped.append("value")
        if dropped:
            raise ConfigurationError(
                f"expected all columns of {table} in {LAYOUT}, found that the column of "
                f"{quoted_list(sorted(dropped))} was dropped. Run adopt_table (for a copied table: "
                "ingest_table) and name the column that replaces it"
            )
        return cls(**found, values=[column for column in values if column is not None])


class Choices(NamedTuple):
    """The names of columns that a user gives for the parts of a record.

    `tombstone` is `<column>=<value>`. For an empty text, the profile chooses the column.
    """

    partition: str = ""
    offset: str = ""
    timestamp: str = ""
    key: str = ""
    value: str = ""
    topic: str = ""
    headers: str = ""
    tombstone: str = ""

    @classmethod
    def of(cls, arguments: object) -> Self:
        """Read the choices from a job's arguments `<part>_column` and `tombstone`."""
        names = [part if part == "tombstone" else f"{part}_column" for part in cls._fields]
        return cls(*(getattr(arguments, name, None) or "" for name in names))


def chosen_column(columns: Columns, name: str) -> Column:
    """Return the column with a name that a user gave.

    Raise NotCoveredError if it does not exist.
    """
    column = columns.named(name)
    if column is None:
        known = quoted_list(column.name for column in columns.all)
        raise NotCoveredError(f"expected a column {name!r}, found {known}. Name one of these")
    return column


# Settings of topics that share an adopted table with a topic column.
#
# A setting of the table applies to all of them. `<setting>@<topic>` overrides it for one topic.


def topic_properties(name: TopicName, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a topic's table that apply to this topic."""
    own = {n.rpartition(IN_TABLE)[0]: v for n, v in properties.items() if is_of_topic(name, n)}
    of_table = {n: v for n, v in properties.items() if IN_TABLE not in n}
    return by_new_names(of_table) | by_new_names(own)


def table_properties(name: TopicName, changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Convert changes of a topic's settings to changes of its table's properties."""
    changes = without_old_names(changes)
    if name.in_table is None:
        return changes
    return {f"{setting}{IN_TABLE}{name.in_table}": value for setting, value in changes.items()}


def is_of_topic(name: TopicName, table_property: str) -> bool:
    """Return whether a property of a shared table is a setting of this topic only."""
    return name.in_table is not None and table_property.endswith(f"{IN_TABLE}{name.in_table}")


def topic_names(table: TopicName, topics: Iterable[str]) -> list[TopicName]:
    """Return the names of a table's topics. Raise RequestError for a name that Kafka refuses."""
    names = []
    for topic in sorted(topics):
        TopicName.checked(table.cluster, topic)
        names.append(table._replace(topic=f"{table.topic}{IN_TABLE}{topic}"))
    return names


def check_is_told(name: TopicName, properties: Mapping[str, str]) -> None:
    """Raise UnknownTopicError if an adopted table has this name, but no topic has."""
    if LAYOUT not in properties:
        return
    is_shared = Layout.parse(properties[LAYOUT]).is_shared
    if is_shared and name.in_table is None:
        raise UnknownTopicError(
            f"expected a topic, found {name}, a table with several topics. Name one of them: "
            f"{name}{IN_TABLE}<topic>"
        )
    if name.in_table is not None:
        raise UnknownTopicError(
            f"expected {name} to be adopted, found no state of it. To adopt the table's topics: "
            f"adopt_table --topic {name.cluster}.{name.table}"
        )


def check_shares(name: TopicName, layout: Layout) -> None:
    """Raise NotCoveredError for a topic of a shared table without a topic column."""
    if name.in_table is not None and layout.topic is None:
        raise NotCoveredError(
            f"expected a table with a topic column, found {name.cluster}.{name.table} without one. "
            f"Name it with --topic-column, or adopt {name.cluster}.{name.table} as one topic"
        )
