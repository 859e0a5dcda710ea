"""The defaults of a topic's settings, as text."""

from __future__ import annotations

from dataclasses import fields

from ebbtide.log.settings.config import TopicConfig

NOT_SET = "not set"
_DEFAULTS = {field.name: field.default for field in fields(TopicConfig)}
# The text of a default whose value is not the property's own text.
_SPELLED = {
    "needs_all_time_limits": "any",
    "expires_records": "segment",
    "event_time": "timestamp",
    "replicas": "none",
}


def default_text(field: str) -> str:
    """Return the default of a field of TopicConfig as a property would have it."""
    value = _DEFAULTS[field]
    if field in _SPELLED:
        return _SPELLED[field]
    if value is None:
        return NOT_SET
    return str(value).lower() if isinstance(value, bool) else str(value)
