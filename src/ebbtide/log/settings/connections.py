"""Connections to Kafka clusters: where their settings are handed over.

Settings hold secrets, so they travel in the driver's environment and never on a command line.
"""

from __future__ import annotations

from ebbtide.errors import ConfigurationError
from ebbtide.json_text import parse_json

# {connection id: librdkafka's settings}, as JSON.
CONNECTIONS = "EBBTIDE_KAFKA_CONNECTIONS"


def parse_connection(connection: str, text: str | None) -> dict[str, str]:
    """Return librdkafka's settings of one connection; no message repeats a setting's value."""
    try:
        known = parse_json(text or "{}")
    except ValueError:
        raise ConfigurationError(
            f"expected {CONNECTIONS} to hold JSON, found something else; it maps the id of each "
            "Kafka connection to librdkafka's settings"
        ) from None
    settings = known.get(connection) if isinstance(known, dict) else None
    if not isinstance(settings, dict) or "bootstrap.servers" not in settings:
        names = ", ".join(sorted(known)) if isinstance(known, dict) and known else "none"
        raise ConfigurationError(
            f"expected the Kafka connection {connection!r} with bootstrap.servers in "
            f"{CONNECTIONS}, found {names}; give Airflow a connection of type kafka with this id, "
            "and librdkafka's settings as its extra"
        )
    return {name: _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
