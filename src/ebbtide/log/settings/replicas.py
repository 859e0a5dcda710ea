"""The other places where a log is kept, from the property `ebbtide.replicas`."""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.log.settings.names import TopicName, check_catalog

REPLICAS = "ebbtide.replicas"
LIVE_PREFIX = "kafka:"


class TableReplica(NamedTuple):
    """A copy of both tables in a namespace of some catalog."""

    catalog: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.cluster}"

    def of(self, primary: TopicName) -> TopicName:
        """Return the copy's own name."""
        return TopicName(self.cluster, primary.topic, self.catalog)


class LiveReplica(NamedTuple):
    """The topic itself, on the brokers of a connection."""

    connection: str

    def __str__(self) -> str:
        return f"{LIVE_PREFIX}{self.connection}"


Replica = TableReplica | LiveReplica


def parse_replicas(name: str, text: str) -> tuple[Replica, ...]:
    """Return the replicas that the property `name` lists, in its order."""
    replicas = tuple(_parse(name, part.strip()) for part in text.split(",")) if text.strip() else ()
    if len(set(replicas)) < len(replicas):
        raise ConfigurationError(f"expected each replica once in {name}, found {text!r}")
    return replicas


def _parse(name: str, text: str) -> Replica:
    if text.startswith(LIVE_PREFIX) and text != LIVE_PREFIX:
        return LiveReplica(text.removeprefix(LIVE_PREFIX))
    catalog, _, cluster = text.partition(".")
    if not (catalog and cluster) or ":" in text:
        raise ConfigurationError(
            f"expected <catalog>.<namespace> or {LIVE_PREFIX}<connection> for each replica in "
            f"{name}, found {text!r}"
        )
    try:
        check_catalog(catalog)
        TopicName.checked(cluster, "any")
    except RequestError as error:
        raise ConfigurationError(f"{error}, in {name} = {text!r}") from None
    return TableReplica(catalog, cluster)
