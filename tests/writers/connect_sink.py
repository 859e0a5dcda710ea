"""A Kafka Connect worker with Iceberg's sink, in a process of its own on loopback.

Connect and the sink come from Maven (conf/ivy/connect.xml). The sink commits to the lake's own
catalog, of which the embedded default is a SQLite file: then two JVMs share that file, as those of
a user do.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark

from ebbtide.lake.catalog_settings import read_defaults
from ebbtide.settings.names import CATALOG
from tests.lake_sandbox import EBBTIDE_HOME
from tests.ports import LOOPBACK, free_port
from tests.services.process import Server

JARS = EBBTIDE_HOME / "connect-jars"
# Hadoop's file systems, and the drivers of catalogs.
BESIDE = (Path(pyspark.__file__).parent / "jars", EBBTIDE_HOME / "jars")
BESIDE_NAMES = (
    *("hadoop-client-*.jar", "commons-logging-*.jar", "hadoop-bare-*.jar"),
    *("sqlite-jdbc-*.jar", "postgresql-*.jar"),
)
MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
OPTIONS = (
    *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"),
    "-Dorg.slf4j.simpleLogger.logFile=System.out",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
CONTROL_TOPIC = "control-iceberg"  # brokers that create no topics must have it
SINK = "sink"
# What a sink says of a commit or a task that failed. The trace of a commit that Iceberg's client
# tries again names CommitFailedException, too.
FAILURE = re.compile(r"\] ERROR |ommit \S+ failed for task|unrecoverable")
RETRY = "Retrying task after failure"  # which Iceberg's client does by itself


def sink_settings(
    defaults: Path, topic: str, tables: Sequence[str], *, is_nested: bool = True, tasks: int = 1
) -> dict[str, str]:
    """Settings of a sink that writes a topic's records to each of these tables of a lake.

    `defaults` is the spark-defaults.conf that names the lake's catalog.
    """
    of_spark = read_defaults(defaults)
    catalog = f"spark.sql.catalog.{CATALOG}."
    settings = {
        "name": SINK,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(tasks),
        "topics": topic,
        "transforms": "metadata",
        "transforms.metadata.type": "org.apache.iceberg.connect.transforms.KafkaMetadataTransform",
        "transforms.metadata.nested": str(is_nested).lower(),
        "iceberg.tables": ",".join(tables),
        "iceberg.control.topic": CONTROL_TOPIC,
        "iceberg.control.commit.interval-ms": "2000",
        "iceberg.catalog": CATALOG,  # the name is part of a JDBC catalog's keys
    }
    for name, value in of_spark.items():
        if name.startswith(catalog):
            settings[f"iceberg.catalog.{name.removeprefix(catalog)}"] = value
        elif name.startswith("spark.hadoop."):
            settings[f"iceberg.hadoop.{name.removeprefix('spark.hadoop.')}"] = value
    return settings


class ConnectSink(Server):
    """A standalone worker between `start` and `stop`, with one sink to begin with."""

    def __init__(self, directory: Path, bootstrap_servers: str, sink: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        worker = {
            "bootstrap.servers": bootstrap_servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(directory / "offsets"),
            # A task hears of a commit between two polls, which otherwise wait for a minute.
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://{LOOPBACK}:{port}",
            # By their manifests: to look through every class takes seconds.
            "plugin.discovery": "service_load",
        }
        files = [
            _properties(directory / "worker.properties", worker),
            _properties(directory / "sink.properties", sink),
        ]
        command = ["java", *OPTIONS, "-cp", class_path(), MAIN, *map(str, files)]
        super().__init__("Kafka Connect", command, port, directory / "connect.log")

    def add(self, sink: Mapping[str, str]) -> None:
        """Start one more sink."""
        body = {"name": sink["name"], "config": dict(sink)}
        self._ask("/connectors", json.dumps(body).encode())

    def states(self, sink: str = SINK) -> list[str]:
        """What the worker says of a sink and of its tasks."""
        status = self._ask(f"/connectors/{sink}/status")
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def failures(self) -> list[str]:
        """The lines of its log that tell of a failed commit or task."""
        return [line for line in self._lines() if FAILURE.search(line)]

    def retries(self) -> int:
        """How often Iceberg's client has tried a commit again."""
        return sum(RETRY in line for line in self._lines())

    def _lines(self) -> list[str]:
        return self.output.read_text(errors="replace").splitlines()

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{LOOPBACK}:{self.port}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def class_path() -> str:
    """Connect's and the sink's jars first, then those that Spark has anyway."""
    beside = [jar for place in BESIDE for name in BESIDE_NAMES for jar in place.glob(name)]
    return ":".join(map(str, [*sorted(JARS.glob("*.jar")), *sorted(beside)]))


def _properties(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file
