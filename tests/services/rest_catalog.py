"""An Iceberg REST catalog: Iceberg's own, with SQLite behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.lake_sandbox import EBBTIDE_HOME
from tests.ports import free_port
from tests.services.process import Server

MAIN = Path(__file__).with_name("LoopbackCatalog.java")
JARS = EBBTIDE_HOME / "rest-jars"
# Hadoop's file systems, and a SQLite driver.
BESIDE = (Path(pyspark.__file__).parent / "jars", EBBTIDE_HOME / "jars")
BESIDE_NAMES = ("hadoop-client-*.jar", "sqlite-jdbc-*.jar", "commons-logging-*.jar")


class RestCatalog(Server):
    """A catalog whose tables lie in `warehouse`, opened by `settings` of its own."""

    def __init__(
        self, directory: Path, warehouse: str, settings: Mapping[str, str] | None = None
    ) -> None:
        port = free_port()
        behind = {
            "uri": f"jdbc:sqlite:{directory}/rest.db?busy_timeout=30000",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
            **(settings or {}),
        }
        pairs = [f"{name}={value}" for name, value in behind.items()]
        command = [
            "java",
            "-Xmx512m",
            "-cp",
            ":".join(map(str, class_path())),
            str(MAIN),
            str(port),
            *pairs,
        ]
        super().__init__("the REST catalog", command, port, directory / "rest.log")

    def settings(self) -> dict[str, str]:
        """What Spark's and pyiceberg's catalogs say of it."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.port}"}


def class_path() -> list[Path]:
    """Its own jars first, then those that Spark has anyway."""
    beside = [jar for place in BESIDE for name in BESIDE_NAMES for jar in place.glob(name)]
    return [*sorted(JARS.glob("*.jar")), *sorted(beside)]
