"""A DeleteRecords request: the KIP's shape in JSON, with three more ways to name an offset.

{"topics": [{"topic": "log.flights", "partitions": [{"partition": 0, "offset": 1200}]}],
 "timeout_ms": 30000}

A partition holds exactly one of `offset` (-1: the high watermark), `timestamp` (ms since the
epoch, or ISO 8601 with a zone), `age` (an ISO 8601 duration before now) and `groups` (consumer
groups, with the `connection` of their cluster). A topic may hold one of them in place of
`partitions`; it then applies to all partitions.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pendulum

from ebbtide.errors import RequestError
from ebbtide.json_text import parse_json
from ebbtide.moments import to_datetime
from ebbtide.numbers import MAX_INT, MAX_LONG
from ebbtide.settings.names import TopicName

TIMEOUT_MS = 30_000
LATEST_MS = MAX_LONG // 1000  # a table's timestamps are microseconds
# ISO 8601: at least one number, and one after T. The parser takes `PT` for zero, and larger numbers
# modulo 2**32.
_NUMBER = r"[0-9]{1,9}"
_DECIMAL = rf"{_NUMBER}(?:[.,][0-9]{{1,9}})?"
_DURATION = re.compile(
    rf"P(?=[0-9T])(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_DECIMAL}W)?(?:{_DECIMAL}D)?"
    rf"(?:T(?=[0-9])(?:{_DECIMAL}H)?(?:{_DECIMAL}M)?(?:{_DECIMAL}S)?)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AtOffset(NamedTuple):
    """Remove the records below this offset; -1: the high watermark."""

    offset: int


class AtTime(NamedTuple):
    """Remove the records before the first one at or after this time, in ms since the epoch."""

    timestamp_ms: int


class OlderThan(NamedTuple):
    """Remove the records before the first one that is at most this old; `text` is the requested
    age.
    """

    age: pendulum.Duration
    text: str

    def at(self, now_ms: int) -> AtTime:
        """Return the selector as a time; months and years are those of the calendar in UTC."""
        now = pendulum.instance(to_datetime(now_ms))
        try:
            then = now - self.age
        except (OverflowError, ValueError):  # before the calendar begins
            return AtTime(0)
        return AtTime(max(0, _ceil_ms(then)))


class CommittedBy(NamedTuple):
    """Remove the records below the lowest offset that these consumer groups have committed."""

    groups: tuple[str, ...]
    connection: str | None


Selector = AtOffset | AtTime | OlderThan | CommittedBy


class TopicRequest(NamedTuple):
    """The request for one topic: selectors by partition, or one selector for all."""

    partitions: Mapping[int, Selector] = {}
    everywhere: Selector | None = None

    def of(self, partitions: Iterable[int]) -> dict[int, Selector]:
        """Return the selector of each requested partition; `partitions` are those of the topic."""
        if self.everywhere is None:
            return dict(self.partitions)
        return dict.fromkeys(partitions, self.everywhere)

    @property
    def connections(self) -> set[str]:
        """The Kafka connections of the request."""
        selectors = [*self.partitions.values(), self.everywhere]
        named = {s.connection for s in selectors if isinstance(s, CommittedBy)}
        return {connection for connection in named if connection is not None}

    def to_object(self, name: TopicName) -> dict[str, Any]:
        """Return the topic's part of a request as a JSON object."""
        if self.everywhere is not None:
            return {"topic": str(name), **_as_fields(self.everywhere)}
        partitions = [{"partition": p, **_as_fields(s)} for p, s in self.partitions.items()]
        return {"topic": str(name), "partitions": partitions}


class DeleteRequest(NamedTuple):
    """A DeleteRecords request; `timeout_ms` limits the wait for replicas."""

    topics: Mapping[TopicName, TopicRequest]
    timeout_ms: int = TIMEOUT_MS


def read_request(path: str) -> DeleteRequest:
    """Read the request from a file."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"expected a request in the file {path}, found {error}") from None
    return parse_request(text)


def parse_request_object(request: Mapping[str, Any]) -> DeleteRequest:
    """Return the request of a JSON object. Raise RequestError that names the wrong field."""
    return parse_request(json.dumps(request))


def parse_request(text: str) -> DeleteRequest:
    """Return the request of a JSON text. Raise RequestError that names the wrong field."""
    try:
        return _parse_document(parse_json(text, object_pairs_hook=_fields_once))
    except ValueError as error:
        raise RequestError(f"expected a request in JSON, found {error}") from None
    except RecursionError:  # of a message that shows what was found
        raise RequestError("expected a request in JSON, found one nested too deeply") from None


def _parse_document(document: Any) -> DeleteRequest:
    _check_fields(document, {"topics", "timeout_ms"}, "request")
    topics: dict[TopicName, TopicRequest] = {}
    for i, entry in enumerate(_list(document, "topics", "request")):
        where = f"topics[{i}]"
        name, asked = _parse_topic(entry, where)
        if name in topics:
            raise RequestError(f"expected each topic once, found {name} again in {where}")
        topics[name] = asked
    if not topics:
        raise RequestError("expected at least one topic in topics, found none")
    if "timeout_ms" not in document:
        return DeleteRequest(topics)
    return DeleteRequest(topics, _integer(document, "timeout_ms", "request", 0, MAX_INT))


def _parse_topic(entry: object, where: str) -> tuple[TopicName, TopicRequest]:
    _check_fields(entry, {"topic", "partitions", "connection", *_SELECTORS}, where)
    text = _text(entry, "topic", where)
    try:
        name = TopicName.parse(text)
    except RequestError as error:
        raise RequestError(f"{error} for topic in {where}") from None
    selector = _only_one(entry, ("partitions", *_SELECTORS), where)
    _check_connection(entry, selector, where)
    if selector == "partitions":
        return name, TopicRequest(_parse_partitions(_list(entry, "partitions", where), where))
    return name, TopicRequest(everywhere=_parse_selector(entry, where))


def _parse_partitions(entries: list[Any], where: str) -> dict[int, Selector]:
    selectors: dict[int, Selector] = {}
    for i, entry in enumerate(entries):
        at = f"{where}.partitions[{i}]"
        _check_fields(entry, {"partition", "connection", *_SELECTORS}, at)
        partition = _integer(entry, "partition", at, 0, MAX_INT)
        if partition in selectors:
            raise RequestError(f"expected each partition once, found {partition} again in {at}")
        selectors[partition] = _parse_selector(entry, at)
    if not selectors:
        raise RequestError(f"expected at least one partition in {where}, found none")
    return selectors


def _parse_selector(entry: object, where: str) -> Selector:
    name = _only_one(entry, _SELECTORS, where)
    _check_connection(entry, name, where)
    return _SELECTORS[name](entry, where)


def _check_connection(entry: object, selector: str, where: str) -> None:
    if selector != "groups" and "connection" in _fields(entry, where):
        raise RequestError(
            f"expected a connection only with groups, found one with {selector} in {where}"
        )


def _parse_offset(entry: object, where: str) -> Selector:
    return AtOffset(_integer(entry, "offset", where, -MAX_LONG - 1, MAX_LONG))


def _parse_timestamp(entry: object, where: str) -> Selector:
    value = _field(entry, "timestamp", where)
    if not isinstance(value, str):
        return AtTime(_integer(entry, "timestamp", where, 0, LATEST_MS))
    try:
        moment = datetime.fromisoformat(value)
        time_ms = _ceil_ms(moment) if moment.tzinfo else -1
    except (OverflowError, ValueError):
        time_ms = -1
    if time_ms < 0:
        raise RequestError(
            "expected ms since the epoch, or ISO 8601 with a zone and not before 1970, for "
            f"timestamp in {where}, found {value!r}"
        )
    return AtTime(time_ms)


def _parse_age(entry: object, where: str) -> Selector:
    value = _text(entry, "age", where)
    try:
        age = pendulum.parse(value) if _DURATION.fullmatch(value) else None
    except (OverflowError, ValueError):
        age = None
    if not isinstance(age, pendulum.Duration):
        raise RequestError(
            f'expected an ISO 8601 duration such as "P30D" for age in {where}, found {value!r}'
        )
    if not age:
        raise RequestError(
            f"expected an age above zero in {where}, found {value!r}, which matches every record. "
            "To remove all records, request the offset -1, the high watermark"
        )
    return OlderThan(age, value)


def _parse_groups(entry: object, where: str) -> Selector:
    groups = _list(entry, "groups", where)
    if not groups or not all(
        isinstance(group, str) and group and _is_unicode(group) for group in groups
    ):
        raise RequestError(
            f"expected the ids of consumer groups for groups in {where}, found {groups!r}"
        )
    if len(set(groups)) < len(groups):
        raise RequestError(f"expected each group once in {where}, found {groups!r}")
    has_connection = "connection" in _fields(entry, where)
    return CommittedBy(tuple(groups), _text(entry, "connection", where) if has_connection else None)


_SELECTORS: dict[str, Callable[[object, str], Selector]] = {
    "offset": _parse_offset,
    "timestamp": _parse_timestamp,
    "age": _parse_age,
    "groups": _parse_groups,
}


def _as_fields(selector: Selector) -> dict[str, Any]:
    """Return the fields of a selector in a request."""
    if isinstance(selector, AtOffset):
        return {"offset": selector.offset}
    if isinstance(selector, AtTime):
        return {"timestamp": selector.timestamp_ms}
    if isinstance(selector, OlderThan):
        return {"age": selector.text}
    connection = {} if selector.connection is None else {"connection": selector.connection}
    return {"groups": list(selector.groups), **connection}


def _ceil_ms(moment: datetime) -> int:
    """Return whole milliseconds since the epoch, rounded up."""
    return timegm(moment.utctimetuple()) * 1000 - (-moment.microsecond // 1000)


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"expected each field once, found {twice!r} twice in one object")
    return fields


def _only_one(entry: object, names: Iterable[str], where: str) -> str:
    given = [name for name in names if name in _fields(entry, where)]
    if len(given) != 1:
        raise RequestError(
            f"expected exactly one of {', '.join(names)} in {where}, "
            f"found {' and '.join(given) or 'none'}"
        )
    return given[0]


def _check_fields(document: object, known: set[str], where: str) -> None:
    unknown = sorted(set(_fields(document, where)) - known)
    if unknown:
        raise RequestError(
            f"expected no field but {', '.join(sorted(known))} in {where}, found {unknown[0]!r}"
        )


def _list(document: object, name: str, where: str) -> list[Any]:
    value = _field(document, name, where)
    if not isinstance(value, list):
        raise RequestError(f"expected list for {name} in {where}, found {value!r}")
    return value


def _text(document: object, name: str, where: str) -> str:
    value = _field(document, name, where)
    if not isinstance(value, str) or not value or not _is_unicode(value):
        raise RequestError(f"expected text for {name} in {where}, found {value!r}")
    return value


def _is_unicode(text: str) -> bool:
    """Return whether the text has no lone surrogate, which JSON can contain."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _integer(document: object, name: str, where: str, minimum: int, maximum: int) -> int:
    value = _field(document, name, where)
    if type(value) is not int or not minimum <= value <= maximum:
        raise RequestError(
            f"expected an integer in [{minimum}, {maximum}] for {name} in {where}, found {value!r}"
        )
    return value


def _field(document: object, name: str, where: str) -> Any:
    fields = _fields(document, where)
    if name not in fields:
        raise RequestError(f"expected the field {name!r} in {where}, found {document!r}")
    return fields[name]


def _fields(document: object, where: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise RequestError(f"expected an object for {where}, found {document!r}")
    return document
