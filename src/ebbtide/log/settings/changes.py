"""Changes of a topic's settings as an operator gives them, checked before anything is set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ebbtide.errors import ConfigurationError, EbbtideError, RequestError
from ebbtide.log.settings.config import parse_config, settings
from ebbtide.log.settings.credentials import check_uri
from ebbtide.log.settings.names import quoted_list
from ebbtide.log.settings.upstream import SOURCE
from ebbtide.log.state.properties import MAX_SNAPSHOT_AGE, parse_snapshot_age
from ebbtide.log.state.topic_state import is_state

# A setting set to None is removed.
SettingChanges = Mapping[str, str | None]


def parse_changes(assignments: Iterable[str], removals: Iterable[str]) -> dict[str, str | None]:
    """NAME=VALUE and NAME as changes; ConfigurationError names everything that is wrong."""
    problems: list[str] = []
    changes: dict[str, str | None] = {}
    for text in assignments:
        try:
            name, value = parse_setting(text)
            changes[name] = value
        except EbbtideError as problem:
            problems.append(str(problem))
    for name in removals:
        try:
            check_names({name: None})
        except EbbtideError as problem:
            problems.append(str(problem))
        if name in changes:
            problems.append(f"expected {name} to be set or unset, found both")
        changes.setdefault(name, None)
    if problems:
        raise ConfigurationError("; ".join(problems))
    return changes


def check_changes(properties: Mapping[str, str], changes: SettingChanges) -> None:
    """Raise ConfigurationError where a topic of these properties cannot have the changes."""
    parse_config(changed(properties, changes))


def changed(properties: Mapping[str, str], changes: SettingChanges) -> dict[str, str]:
    """Return the properties after the changes."""
    merged: dict[str, str | None] = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def parse_setting(text: str) -> tuple[str, str]:
    """Return a setting given as NAME=VALUE, checked as far as it can be without the topic."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"expected NAME=VALUE for a setting, found {text!r}")
    check_names({name: value})
    parse_config({name: value})
    return name, value


def check_names(changes: SettingChanges) -> None:
    """Raise ConfigurationError for a name that no topic may be given, or a value out of bounds."""
    known = {*settings(), MAX_SNAPSHOT_AGE}
    for name, value in changes.items():
        if name == SOURCE and value is not None:
            check_uri(value.partition(":")[2])
        is_kafka = name.startswith("kafka.")  # parse_config tells these apart
        if is_state(name) or not (is_kafka or name in known):
            raise ConfigurationError(
                f"expected one of {quoted_list(sorted(known))}, found {name!r}"
            )
        if name == MAX_SNAPSHOT_AGE and value is not None:
            parse_snapshot_age(value)
