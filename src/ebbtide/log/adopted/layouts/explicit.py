"""Any other table, by a mapping of partition, offset, timestamp, key and value."""

from __future__ import annotations

from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.profile import Profile, built

NAME = "explicit"


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout that the choices name; None where they leave out a needed column."""
    return built(NAME, columns, {}, choices)


PROFILE = Profile(NAME, "any writer", "the columns that adopt_table is given", recognise)
