"""The places where this installation keeps things, from two environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Paths:
    """`root` holds jobs/ and dags/; `home` holds what is made at set-up and at run time."""

    root: Path
    home: Path

    @property
    def jobs(self) -> Path:
        """One spark-submit main a file."""
        return self.root / "jobs"

    @property
    def package_zip(self) -> Path:
        """The package as Spark's executors import it."""
        return self.home / "ebbtide.zip"

    @property
    def logs(self) -> Path:
        """Full output of what `make run` shows condensed."""
        return self.home / "logs"


def paths() -> Paths:
    """Return the paths that EBBTIDE_ROOT and EBBTIDE_HOME name."""
    return Paths(root=_directory("EBBTIDE_ROOT"), home=_directory("EBBTIDE_HOME"))


def _directory(variable: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        raise ConfigurationError(
            f"expected {variable} in the environment, found it unset: "
            "load .ebbtide/conf/airflow.env, which `make setup` writes, or set it as "
            "docs/deploy.md says"
        )
    return Path(path)
