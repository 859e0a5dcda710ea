"""A cell's log and tables: made once, kept, and laid out afresh before each run.

`pristine/` holds what a run starts from. Tables name their files by absolute path, so they are
made in `home/lake`, moved away, and hard-linked back there for each run: neither Kafka nor
Iceberg writes into a file that it did not make in the same round.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.clean_log.data.cells import Cell
from benchmarks.clean_log.data.home import BENCH, ROOT, environment, make_home
from benchmarks.clean_log.data.log_files import Survivors, write_log

CATALOG = "catalog.db"
TOPIC_TABLE, PLAIN_TABLE, ADOPTED_TABLE = "topic", "plain", "adopted"
OF_TOPIC = (PLAIN_TABLE, ADOPTED_TABLE)  # made of the topic's records


class CellData(NamedTuple):
    """Where a cell's data lie, and what is live when it has been cleaned."""

    cell: Cell
    directory: Path
    survivors: Survivors

    @property
    def home(self) -> Path:
        """The run's own EBBTIDE_HOME."""
        return self.directory / "home"

    @property
    def log(self) -> Path:
        """The log directory as it is before the round."""
        return self.directory / "pristine" / "log"

    def lake(self, table: str) -> Path:
        """A lake with this table of `tables.py` as it is before the round."""
        return self.directory / "pristine" / table

    def lay_out(self, table: str | None = None) -> None:
        """Log, and lake of a table, as before the round, whatever a run has done to them."""
        for name in ("log", "lake"):
            shutil.rmtree(self.home / name, ignore_errors=True)
        shutil.copytree(self.log, self.home / "log", copy_function=os.link)
        if table is not None:
            shutil.copytree(self.lake(table), self.home / "lake", copy_function=os.link)
            # SQLite does write into its file.
            (self.home / "lake" / CATALOG).unlink()
            shutil.copy2(self.lake(table) / CATALOG, self.home / "lake" / CATALOG)


def prepare(cell: Cell, tables: Sequence[str]) -> CellData:
    """The cell's data, made as far as they are not there: the log, then tables of `tables.py`."""
    directory = BENCH / cell.name
    facts = directory / "facts.json"
    if not facts.exists():
        shutil.rmtree(directory, ignore_errors=True)
        print(f"{cell.name}: writing {cell.records:,} records", file=sys.stderr, flush=True)
        facts.write_text(json.dumps(write_log(cell, directory / "pristine" / "log")))
    data = CellData(cell, directory, Survivors(*json.loads(facts.read_text())))
    make_home(data.home)
    missing = [table for table in OF_TOPIC if table in tables and not data.lake(table).exists()]
    if TOPIC_TABLE in tables or missing:
        _make_topic(data)
    for table in missing:
        data.lay_out(TOPIC_TABLE)
        _make(data, table)
    return data


def _make_topic(data: CellData) -> None:
    """Anew where the tables' columns or settings have changed since."""
    schema = find_spec("ebbtide.iceberg.schema")
    assert schema is not None
    assert schema.origin is not None
    made_of = sha256(Path(schema.origin).read_bytes()).hexdigest()
    marker = data.lake(TOPIC_TABLE) / "made-of"
    if not marker.exists() or marker.read_text() != made_of:
        data.lay_out()
        _make(data, TOPIC_TABLE)
        marker.write_text(made_of)


def _make(data: CellData, table: str) -> None:
    print(f"{data.cell.name}: making the {table} table", file=sys.stderr, flush=True)
    (data.home / "lake").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.clean_log.data.tables", data.cell.name, table]
    subprocess.run(command, cwd=ROOT, env=environment(data.home), check=True)
    shutil.rmtree(data.lake(table), ignore_errors=True)
    (data.home / "lake").rename(data.lake(table))
