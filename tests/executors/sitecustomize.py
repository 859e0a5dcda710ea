"""In tests, Spark's workers import for ebbtide only what requirements-executors.in names.

Python runs this file first if its folder is on PYTHONPATH. On a cluster, executors have no other
package, though a worker on this machine has all of the driver's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from traceback import walk_stack
from types import ModuleType

_OURS = ("ebbtide", "ebbtide_verify", "jobs")
_OF_SPARK = ("pyspark", "py4j")
# Packages whose modules have another name.
_MODULES = {"backports-zstd": "backports", "python-snappy": "snappy"}
_NAMED = Path(__file__).resolve().parent.parent.parent / "requirements-executors.in"


class OnlyOfExecutors:
    """A finder that finds nothing, and refuses what executors lack."""

    def __init__(self) -> None:
        packages = {line.strip() for line in _NAMED.read_text().splitlines()}
        modules = {_MODULES.get(name, name.replace("-", "_")) for name in packages}
        self._known = {*modules, *_OURS, *_OF_SPARK, "tests", *sys.stdlib_module_names}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError if a module of ebbtide imports an unknown package."""
        if path is None and name not in self._known and _importer().split(".")[0] in _OURS:
            raise ModuleNotFoundError(
                f"expected a package of requirements-executors.in, found an import of {name} by "
                f"{_importer()} in a task",
                name=name,
            )
        return None


def _importer() -> str:
    """Return the name of the module that imports."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe()))
    return next(name for name in names if not name.startswith(("importlib", __name__)))


sys.meta_path.insert(0, OnlyOfExecutors())
