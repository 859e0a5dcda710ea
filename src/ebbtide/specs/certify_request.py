"""Requests to certify an erasure: keys, a range of offsets, or both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ebbtide.errors import RequestError

RANGE = ("partition", "first_offset", "end_offset")


class AskedOffsets(NamedTuple):
    """Offsets of a partition; the end is exclusive."""

    partition: int
    first: int
    end: int


def parse_range(values: Mapping[str, Any]) -> AskedOffsets | None:
    """Return the offsets of a request, or None. Raise RequestError if a field is missing."""
    partition, first, end = (values.get(name) for name in RANGE)
    if partition is first is end is None:
        return None
    if partition is None or first is None or end is None or first >= end:
        found = ", ".join(f"{name}={values.get(name)}" for name in RANGE)
        raise RequestError(
            f"expected a partition, a first offset and a larger end offset, found {found}"
        )
    return AskedOffsets(partition, first, end)


def check_is_one(*, keys: bool, file: bool, offsets: bool) -> None:
    """Raise RequestError if a request names nothing, or names keys twice."""
    if keys and file:
        raise RequestError("expected either keys or a file of keys, found both. Leave one empty")
    if not (keys or file or offsets):
        raise RequestError("expected keys, a file of keys or a range of offsets, found none")


def check_of_erasure(
    topic: str, run_id: str, erased: Collection[str], given: Sequence[Sequence[str]]
) -> None:
    """Raise RequestError unless the given keys are those that a run erased.

    `erased` has a name of each key, and `given` the names that each key may have.
    """
    if not erased:
        raise RequestError(
            f"expected the id of a run of erase_keys on {topic}, found {run_id}, which erased no "
            "key. The page Erasures has the ids"
        )
    of_run = sum(any(name in erased for name in names) for names in given)
    if not len(erased) == len(given) == of_run:
        raise RequestError(
            f"expected the {len(erased)} keys that run {run_id} erased, found {len(given)} keys, "
            f"of which it erased {of_run}. Give the same keys, or name no erasure"
        )
