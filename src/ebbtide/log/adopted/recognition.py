"""Recognise the layout of a table by its schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ebbtide.errors import NotCoveredError
from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.layouts import (
    aiven,
    automq,
    connect_sink,
    explicit,
    redpanda,
    spark_source,
    tableflow,
)
from ebbtide.log.adopted.profile import Profile
from ebbtide.log.settings.names import quoted_list

# The first that recognises a table has it.
PROFILES: Sequence[Profile] = (
    redpanda.PROFILE,
    automq.PROFILE,
    connect_sink.PROFILE,
    tableflow.PROFILE,
    aiven.PROFILE,
    spark_source.PROFILE,
    explicit.PROFILE,
)


class Recognised(NamedTuple):
    """A table's layout, and whose it is."""

    profile: Profile
    layout: Layout


def recognise(columns: Columns, choices: Choices, profile: str = "") -> Recognised:
    """Return the layout of a table, of the named profile if one is given.

    NotCoveredError where none fits.
    """
    candidates = [of for of in PROFILES if not profile or of.name == profile]
    if not candidates:
        known = quoted_list(of.name for of in PROFILES)
        raise NotCoveredError(f"expected one of the profiles {known}, found {profile!r}")
    for candidate in candidates:
        layout = candidate.recognise(columns, choices)
        if layout is not None:
            return Recognised(candidate, layout)
    found = quoted_list(column.name for column in columns.all)
    raise NotCoveredError(
        f"expected the columns of {quoted_list(of.name for of in candidates)}, found {found}; name "
        "the columns of partition, offset and timestamp, and those of key and value, with "
        "--partition-column and so on"
    )


def profile_named(name: str) -> Profile:
    """Return the profile of a layout; NotCoveredError for one of a newer version."""
    for profile in PROFILES:
        if profile.name == name:
            return profile
    raise NotCoveredError(
        f"expected a profile that this version knows, found {name!r}: a newer ebbtide has adopted "
        "the table; upgrade this one"
    )
