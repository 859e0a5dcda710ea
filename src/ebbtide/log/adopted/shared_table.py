"""Topics that share an adopted table, told by its column of topics: their settings on that table.

A setting of the table holds for all of them; `<setting>@<topic>` goes before it for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ebbtide.errors import NotCoveredError, UnknownTopicError
from ebbtide.log.adopted.layout import LAYOUT, Layout
from ebbtide.log.settings.names import IN_TABLE, TopicName


def topic_properties(name: TopicName, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a topic's table as they hold for this topic."""
    own = {n.rpartition(IN_TABLE)[0]: v for n, v in properties.items() if is_of_topic(name, n)}
    return {n: v for n, v in properties.items() if IN_TABLE not in n} | own


def table_properties(name: TopicName, changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return changes of a topic's settings as changes of its table's properties."""
    if name.in_table is None:
        return dict(changes)
    return {f"{setting}{IN_TABLE}{name.in_table}": value for setting, value in changes.items()}


def is_of_topic(name: TopicName, table_property: str) -> bool:
    """Return whether a property of a shared table is a setting of this topic alone."""
    return name.in_table is not None and table_property.endswith(f"{IN_TABLE}{name.in_table}")


def topic_names(table: TopicName, topics: Iterable[str]) -> list[TopicName]:
    """Return the names of a table's topics; RequestError for one that Kafka would not take."""
    names = []
    for topic in sorted(topics):
        TopicName.checked(table.cluster, topic)
        names.append(table._replace(topic=f"{table.topic}{IN_TABLE}{topic}"))
    return names


def check_is_told(name: TopicName, properties: Mapping[str, str]) -> None:
    """Raise UnknownTopicError where a table has this name, but no topic of it does."""
    if LAYOUT not in properties:
        return
    is_shared = Layout.parse(properties[LAYOUT]).is_shared
    if is_shared and name.in_table is None:
        raise UnknownTopicError(
            f"expected a topic, found {name}, a table that holds several: name one of them, "
            f"{name}{IN_TABLE}<topic>"
        )
    if name.in_table is not None:
        raise UnknownTopicError(
            f"expected {name} to be adopted, found no state of it; adopt_table --topic "
            f"{name.cluster}.{name.table} adopts what the table holds"
        )


def check_shares(name: TopicName, layout: Layout) -> None:
    """Raise NotCoveredError for a topic of a table that has no column of topics."""
    if name.in_table is not None and layout.topic is None:
        raise NotCoveredError(
            f"expected a table with a column of topics, found {name.cluster}.{name.table} without "
            f"one; name it with --topic-column, or adopt {name.cluster}.{name.table} as one topic"
        )
