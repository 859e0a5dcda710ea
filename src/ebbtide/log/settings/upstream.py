"""The writer of the log that a topic's tables hold, from the property `ebbtide.source`.

Offsets belong to the writer: only a topic without an upstream may be given records directly.
"""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.errors import ConfigurationError
from ebbtide.log.settings.credentials import redacted

SOURCE = "ebbtide.source"
TABLE = "table"  # a kind
_PREFIXES = {
    "kafka": "kafka:<connection>",
    "segments": "segments:<URI>",
    TABLE: "table:<namespace>.<table>",
}


class Upstream(NamedTuple):
    """Brokers that a Kafka connection reaches, a log directory, or a table that others write.

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
    """Return the upstream that the property `name` names; None for an empty one."""
    kind, _, where = text.strip().partition(":")
    if not text.strip():
        return None
    if kind in _PREFIXES and where:
        return Upstream(kind, redacted(where))
    raise ConfigurationError(
        f"expected {' or '.join(_PREFIXES.values())} for {name}, found {redacted(text)!r}; "
        "remove it where nobody writes the log any more"
    )
