"""The writer of the log that a topic's tables hold, from the property `ebbtide.source`.

Offsets belong to the writer: only a topic without an upstream may be given records directly.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.json_text import parse_json
from ebbtide.settings.names import TopicName, check_catalog

_SECRET = "(?:secret|password|token|key|sas|signature)"
# A user before the host, or a parameter by the name of a secret.
_IN_A_URI = (
    r"[a-zA-Z][a-zA-Z0-9+.-]*://"
    rf"""(?:[^/?#\s'"]*@|[^?\s'"]*\?(?:[^\s'"]*&)?[^=&\s'"]*{_SECRET}[^=&\s'"]*=)"""
)
# A form field's pattern in JSON Schema.
WITHOUT_CREDENTIALS = rf"^(?!.*{_IN_A_URI}).*$"
_FOUND = re.compile(_IN_A_URI, re.IGNORECASE)
_USER = re.compile(r"(://)[^/?#\s'\"]*@")
_VALUE = re.compile(rf"([?&][^=&\s]*{_SECRET}[^=&\s]*=)[^&\s'\"]*", re.IGNORECASE)


def check_uri(uri: str) -> str:
    """Return the URI. Raise RequestError if it has a user, a password or a key."""
    if _FOUND.search(uri):
        raise RequestError(
            f"expected a URI without credentials, found some in {redacted(uri)}: it would be "
            "stored with the topic and shown in logs. Give Spark's processes the credentials in "
            "their environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
        )
    return uri


def redacted(text: str) -> str:
    """Return the text without the credentials of the URIs in it."""
    return _VALUE.sub(r"\1***", _USER.sub(r"\1***@", text))


# Connections to Kafka clusters.
#
# Their settings have secrets, so they are passed in the driver's environment, never on a command
# line.


# {connection id: librdkafka's settings}, as JSON.
CONNECTIONS = "EBBTIDE_KAFKA_CONNECTIONS"


def parse_connection(connection: str, text: str | None) -> dict[str, str]:
    """Return librdkafka's settings of one connection. No message shows a setting's value."""
    try:
        known = parse_json(text or "{}")
    except ValueError:
        raise ConfigurationError(
            f"expected JSON in {CONNECTIONS}, found other text. It maps the id of each Kafka "
            "connection to librdkafka's settings"
        ) from None
    settings = known.get(connection) if isinstance(known, dict) else None
    if not isinstance(settings, dict) or "bootstrap.servers" not in settings:
        names = ", ".join(sorted(known)) if isinstance(known, dict) and known else "none"
        raise ConfigurationError(
            f"expected the Kafka connection {connection!r} with bootstrap.servers in "
            f"{CONNECTIONS}, found {names}. Create an Airflow connection of type kafka with this "
            "id, and librdkafka's settings as its extra"
        )
    return {name: _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


SOURCE = "ebbtide.source"
TABLE = "table"  # a kind
_PREFIXES = {
    "kafka": "kafka:<connection>",
    "segments": "segments:<URI>",
    TABLE: "table:<namespace>.<table>",
}


class Upstream(NamedTuple):
    """The source of a topic: brokers of a Kafka connection, a log directory or a table.

    `kind` is `kafka`, `segments` or `table`.
    """

    kind: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    @property
    def connection(self) -> str | None:
        """The Kafka connection; None for a log directory or a table."""
        return self.where if self.kind == "kafka" else None


def parse_upstream(name: str, text: str) -> Upstream | None:
    """Return the source that the property `name` names, or None if it is empty."""
    kind, _, where = text.strip().partition(":")
    if not text.strip():
        return None
    if kind in _PREFIXES and where:
        return Upstream(kind, redacted(where))
    raise ConfigurationError(
        f"expected {' or '.join(_PREFIXES.values())} for {name}, found {redacted(text)!r}. Unset "
        "it if the topic has no source any more"
    )


REPLICAS = "ebbtide.replicas"
LIVE_PREFIX = "kafka:"


class TableReplica(NamedTuple):
    """A replica of both tables in a namespace of a catalog."""

    catalog: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.cluster}"

    def of(self, primary: TopicName) -> TopicName:
        """Return the replica's name."""
        return TopicName(self.cluster, primary.topic, self.catalog)


class LiveReplica(NamedTuple):
    """The live topic, on the brokers of a connection."""

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
