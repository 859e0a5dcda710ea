"""Exports of a topic, and how Kafka's own classes read them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.export_segments import Export, execute_export, plan_export
from ebbtide.records.log_directory import list_log_directory, read_manifest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.kafka.broker import KafkaBroker, java_command, server_settings
from tests.kafka.oracle import LogState, Round, SourceLog, run_oracle
from tests.tables.kafka_view import View


def export(
    spark: SparkSession, name: TopicName, target: Path, *partitions: int, run_id: str = "run"
) -> JobOutcome:
    topic = load(spark, name)
    return execute_export(plan_export(topic, Export(str(target), run_id, partitions)))


def kafkas_states(directory: Path, jars: Path, rounds: Sequence[Round] = ()) -> dict[str, LogState]:
    """Every partition of a log directory as Kafka's classes load it, by directory name; with
    `rounds`, as the last of them leaves it.
    """
    (states,) = states_of_each([directory], jars, rounds)
    return states


def states_of_each(
    directories: Sequence[Path], jars: Path, rounds: Sequence[Round] = ()
) -> list[dict[str, LogState]]:
    """The same of several log directories, by one start of Kafka's classes."""
    logs = [_logs_of(directory, rounds) for directory in directories]
    results = iter(run_oracle([log for directory_logs in logs for log in directory_logs], jars))
    return [
        {
            log.directory.name: (result.initial, *result.rounds)[-1]
            for log, result in ((log, next(results)) for log in directory_logs)
        }
        for directory_logs in logs
    ]


def _logs_of(directory: Path, rounds: Sequence[Round]) -> list[SourceLog]:
    manifest = read_manifest(str(directory))
    assert manifest is not None
    return [
        SourceLog(
            directory=Path(listed.path),
            config=manifest.topic_configs[listed.topic],
            rounds=rounds,
            log_start_offset=listed.log_start_offset or 0,
            modified_ms={segment.base_offset: segment.modified_ms for segment in listed.segments},
        )
        for listed in list_log_directory(str(directory))
    ]


def exact(batch: dict[str, Any]) -> dict[str, Any]:
    """All of a batch but the size that a codec decides."""
    return {
        name: value
        for name, value in batch.items()
        if name != "size_bytes" or batch["compression"] == "none"
    }


def assert_same(view: View, expected: View) -> None:
    assert view.records == expected.records
    assert [exact(b) for b in view.batches] == [exact(b) for b in expected.batches]
    assert view.segments == expected.segments
    assert view.log_start_offset == expected.log_start_offset
    assert view.log_end_offset == expected.log_end_offset


def add_log_directories(broker: KafkaBroker, *directories: Path) -> None:
    """Let a stopped broker serve these too, as its operator would: docs/restore.md."""
    broker.overrides["log.dirs"] = ",".join(map(str, (broker.log_dir, *directories)))
    properties = broker.work_dir / "format.properties"
    settings = server_settings(broker) | broker.overrides
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    arguments = ("format", "--ignore-formatted", "-t", broker.cluster_id, "-c", str(properties))
    command = java_command(broker.jars_dir, "kafka.tools.StorageTool", *arguments)
    subprocess.run(command, check=True, capture_output=True)
