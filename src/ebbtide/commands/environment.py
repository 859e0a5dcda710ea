"""Load what `make setup` wrote into airflow.env, so that a shell needs not to have loaded it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

# One of them is missing in a shell that has not loaded airflow.env.
NEEDED = ("EBBTIDE_HOME", "EBBTIDE_ROOT", "SPARK_CONF_DIR")
ENV_FILE = Path(".ebbtide", "conf", "airflow.env")


def load_environment() -> None:
    """Set what airflow.env sets, where it can be found; a variable that is set already stays."""
    if all(os.environ.get(name) for name in NEEDED):
        return
    file = next((file for file in _places() if file.exists()), None)
    for name, value in _variables(file.read_text()) if file else ():
        if name == "PATH" or not os.environ.get(name):
            os.environ[name] = value


def _places() -> Iterator[Path]:
    """Yield where airflow.env may be: beside the environment that runs this, and here."""
    yield Path(sys.prefix).parent / ENV_FILE
    yield Path.cwd() / ENV_FILE


def _variables(text: str) -> Iterator[tuple[str, str]]:
    """Yield the assignments of a shell file; single quotes keep a dollar sign, others do not."""
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        word = "".join(shlex.split(value))
        yield name, word if value.startswith("'") else os.path.expandvars(word)
