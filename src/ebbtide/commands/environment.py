"""Load the airflow.env of `make setup`, so that users need not source it in their shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

# A shell without airflow.env lacks at least one of these variables.
NEEDED = ("EBBTIDE_HOME", "EBBTIDE_ROOT", "SPARK_CONF_DIR")
ENV_FILE = Path(".ebbtide", "conf", "airflow.env")


def load_environment() -> None:
    """Set the variables of airflow.env, if it is found. Keep variables that are set already.

    PATH is always set.
    """
    if all(os.environ.get(name) for name in NEEDED):
        return
    file = next((file for file in _places() if file.exists()), None)
    for name, value in _variables(file.read_text()) if file else ():
        if name == "PATH" or not os.environ.get(name):
            os.environ[name] = value


def _places() -> Iterator[Path]:
    """Yield the possible paths of airflow.env: next to this Python environment, and here."""
    yield Path(sys.prefix).parent / ENV_FILE
    yield Path.cwd() / ENV_FILE


def _variables(text: str) -> Iterator[tuple[str, str]]:
    """Yield the assignments of a shell file. Expand variables, but not in single quotes."""
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        word = "".join(shlex.split(value))
        yield name, word if value.startswith("'") else os.path.expandvars(word)
