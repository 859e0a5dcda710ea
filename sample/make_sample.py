"""Produce the sample's topics to a real broker and keep its log directory: `make sample`."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewTopic,
)

from sample.flight_events import LOG_END, read_events
from sample.write_log import AUDIT, FLIGHTS, write_log
from tests.kafka.broker import KafkaBroker

RESOLVE_JARS = Path(__file__).parents[1] / "conf" / "ivy" / "resolve_jars.py"
SEED = 20130201
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PARTITIONS = {FLIGHTS: 3, AUDIT: 1}
DECLARED = {
    FLIGHTS: {
        "cleanup.policy": "compact",
        "delete.retention.ms": str(12 * HOUR_MS),
        "min.cleanable.dirty.ratio": "0.1",
        "segment.bytes": str(1024 * 1024),
        # A marker carries the wall clock and follows data weeks older: days would roll there.
        "segment.ms": str(90 * DAY_MS),
    },
    AUDIT: {
        "cleanup.policy": "delete",
        "retention.ms": str(14 * DAY_MS),
        "segment.ms": str(DAY_MS),
    },
}
# Rolls small segments, which `segment.bytes` allows from 1 MiB only. Not declared.
FORCED = {FLIGHTS: {"internal.segment.bytes": str(160 * 1024)}, AUDIT: {}}
# The broker keeps its hands off the log while it is written.
QUIET = {
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": str(30 * DAY_MS),
    "log.initial.task.delay.ms": str(30 * DAY_MS),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the log anew; the old one is replaced only by a complete one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", type=Path, default=Path(".ebbtide/kafka-jars"))
    parser.add_argument("--work", type=Path, default=Path(".ebbtide/sample-broker"))
    parser.add_argument("--target", type=Path, default=Path(__file__).parent / "log")
    args = parser.parse_args(argv)
    subprocess.run([sys.executable, str(RESOLVE_JARS), "kafka", str(args.jars)], check=True)
    shutil.rmtree(args.work, ignore_errors=True)
    events = read_events(whole_day_shift(datetime.now(UTC)), SEED)
    started = time.monotonic()
    with KafkaBroker(args.jars, args.work, **QUIET) as broker:
        create_topics(broker.bootstrap_servers)
        operations = write_log(broker.bootstrap_servers, events, SEED)
        config = declared_config(broker.bootstrap_servers)
    keep_log(broker.log_dir, args.target, config)
    shutil.rmtree(args.work)
    size = sum(path.stat().st_size for path in args.target.rglob("*") if path.is_file())
    print(
        f"{len(events)} events of flights in {len(operations)} operations, {size / 1e6:.2f} MB "
        f"in {args.target} ({time.monotonic() - started:.0f} s)"
    )
    return 0


def whole_day_shift(now: datetime) -> timedelta:
    """The most whole days that leave no arrival later than `now`."""
    return timedelta(days=(now - LOG_END) // timedelta(days=1))


def create_topics(bootstrap_servers: str) -> None:
    """Create both topics with what they declare and what forces their segments."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [
        NewTopic(name, count, 1, config=DECLARED[name] | FORCED[name])
        for name, count in PARTITIONS.items()
    ]
    for created in admin.create_topics(topics).values():
        created.result(timeout=30)


def declared_config(bootstrap_servers: str) -> dict[str, dict[str, str]]:
    """The topics' own settings as the broker tells them, without those that force segments."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in PARTITIONS]
    return {
        resource.name: {
            name: entry.value
            for name, entry in sorted(told.result(timeout=30).items())
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            and name not in FORCED[resource.name]
        }
        for resource, told in admin.describe_configs(resources).items()
    }


def keep_log(source: Path, target: Path, config: dict[str, dict[str, str]]) -> None:
    """Copy what ebbtide reads of a log directory, and note what a copy in git loses."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    files: dict[str, dict[str, int]] = {}
    for topic, count in sorted(PARTITIONS.items()):
        for partition in range(count):
            directory = source / f"{topic}-{partition}"
            (fresh / directory.name).mkdir(parents=True)
            shutil.copyfile(
                directory / "partition.metadata", fresh / directory.name / "partition.metadata"
            )
            for path in sorted(directory.glob("*.log")):
                shutil.copyfile(path, fresh / directory.name / path.name)
                files[f"{directory.name}/{path.name}"] = {
                    "modified_ms": path.stat().st_mtime_ns // 1_000_000,
                    "size_bytes": path.stat().st_size,
                }
    for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint"):
        (fresh / name).write_text(own_rows(source / name))
    manifest = {
        "files": files,
        "last_append_ms": max(file["modified_ms"] for file in files.values()),
        "topics": {topic: {"config": settings} for topic, settings in sorted(config.items())},
    }
    (fresh / "ebbtide-manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    fresh.replace(target)


def own_rows(checkpoint: Path) -> str:
    """The checkpoint with the rows of the sample's topics only: version, count, rows."""
    rows = [
        line for line in checkpoint.read_text().splitlines()[2:] if line.split()[0] in PARTITIONS
    ]
    return "\n".join(["0", str(len(rows)), *sorted(rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
