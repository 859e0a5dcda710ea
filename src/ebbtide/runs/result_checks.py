"""Find where a job's result breaks the types that its readers rely on; tests make that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

from ebbtide.log.results import Result
from ebbtide.specs.all_specs import SPECS


def problems(job: str, result: Result) -> Iterator[str]:
    """Yield where a result breaks its job's types: a missing or unknown field, or a wrong type."""
    if job not in SPECS:
        yield f"nobody says what {job} says"
        return
    of_partition, of_topic = SPECS[job].result
    yield from _problems("the topic", of_topic, result["topic"])
    for partition, numbers in result["partitions"].items():
        yield from _problems(f"partition {partition}", of_partition, numbers)


def _problems(where: str, kind: type, numbers: Mapping[str, Any]) -> Iterator[str]:
    types, described = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    required = {name for name, of in described.items() if get_origin(of) is not NotRequired}
    yield from (f"{where} has no {name}" for name in sorted(required - numbers.keys()))
    for name, value in numbers.items():
        if name not in types:
            yield f"{where} has an unknown {name}"
        elif not _is_of(types[name], value):
            yield f"{where} has {name} = {value!r}, which is no {types[name]}"


def _is_of(kind: Any, value: object) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is UnionType:
        return any(_is_of(one, value) for one in get_args(kind))
    kind = get_origin(kind) or kind
    if kind in (int, float, bool, str, NoneType):
        return type(value) is kind or (kind is float and type(value) is int)
    return isinstance(value, Mapping if kind is dict else kind)
