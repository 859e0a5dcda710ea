"""ebbtide's own tables: each is declared once, beside the class of its rows.

Rows are appended and never changed. Spark's side writes and reads them (`iceberg/own_tables.py`),
Airflow's side reads them (`lake/reader.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

from ebbtide.log.settings.names import CATALOG, OWN_NAMESPACE, quoted

R = TypeVar("R")

_COMMENT = re.compile(r"\s+COMMENT '[^']*'")
_COLUMN = re.compile(r"`?(\w+)`? ([A-Z]+(?:<[A-Z, ]+>)?)")


class Cell(NamedTuple):
    """How a field becomes the cell of a column, and how it is read back."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


JSON = Cell(json.dumps, json.loads)
DENSE_JSON = Cell(partial(json.dumps, separators=(",", ":")), json.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTable(Generic[R]):
    """One of ebbtide's own tables; a row has a field for each column, of the same name."""

    name: str  # in the namespace `ebbtide`
    columns: str  # as SQL's DDL has them
    day: str  # the time that the table is partitioned by the days of
    build: Callable[..., R]  # returns the row of these fields, None for what the table lacks
    cells: Mapping[str, Cell] = field(default_factory=dict)  # of fields that are no cells
    properties: Mapping[str, str] = field(default_factory=dict)  # beside those of all tables

    @property
    def types(self) -> Mapping[str, str]:
        """The SQL type of each column, in order."""
        return _types(self.columns)

    @property
    def place(self) -> tuple[str, str]:
        """Its namespace and name in a catalog."""
        return OWN_NAMESPACE, self.name

    def in_catalog(self, catalog: str = CATALOG) -> str:
        """Return its SQL identifier."""
        return quoted(catalog, *self.place)

    def to_cells(self, row: R) -> dict[str, Any]:
        """Return a row as the table has it."""
        cells = {name: getattr(row, name) for name in self.types}
        for name, cell in self.cells.items():
            if cells[name] is not None:
                cells[name] = cell.write(cells[name])
        return cells

    def to_row(self, cells: Mapping[str, Any]) -> R:
        """Return a row from what pyarrow gives; columns of other tools are left out."""
        fields = {name: cells.get(name) for name in self.types}
        for name, cell in self.cells.items():
            if fields[name] is not None:
                fields[name] = cell.read(fields[name])
        return self.build(**fields)


@cache
def _types(columns: str) -> dict[str, str]:
    return dict(_COLUMN.findall(_COMMENT.sub("", columns)))
