"""What jobs are asked on their command lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ebbtide.settings.names import TopicName
from tests.jobs.ingest_topic.live import CONNECTION

WHY = ("--case-id", "7", "--reason", "asked", "--owner", "ann")
ASKED = ("--requested-by", "privacy office", "--reason", "17")


def words_of(option: str, values: Iterable[object]) -> list[str]:
    """The option with each of the values."""
    return [word for value in values for word in (option, str(value))]


def topics(names: Iterable[TopicName]) -> list[str]:
    return words_of("--topic", names)


def settings_of(settings: Mapping[str, str]) -> list[str]:
    return words_of("--set", map("=".join, settings.items()))


def deletion(names: Iterable[TopicName], offset: int) -> list[str]:
    """What delete_records is asked; it waits for no replica."""
    partitions = [{"partition": 0, "offset": offset}]
    asked = [{"topic": str(name), "partitions": partitions} for name in names]
    return ["--request", json.dumps({"topics": asked, "timeout_ms": 1})]


def hold(first_offset: int, *end: str) -> tuple[str, ...]:
    return ("--action", "make", "--partition", "0", "--first-offset", str(first_offset), *end, *WHY)


def asked(
    job: str,
    names: Sequence[TopicName],
    *,
    log: object = "",
    offset: int = 0,
    held: Sequence[str] = (),
    undone: str = "",
) -> list[str]:
    """What a job is asked on topics of one cluster, whose source is `log`."""
    first = names[0] if names else TopicName("", "")
    more: dict[str, Sequence[str]] = {
        "ingest_segments": ("--source", str(log), "--cluster", first.cluster),
        "ingest_topic": ("--connection", CONNECTION, "--cluster", first.cluster),
        "ingest_table": ("--source", f"source.{first.topic}"),
        "erase_keys": (*ASKED, "--append"),
        "certify_erasure": ("--partition", "0", "--first-offset", "0", "--end-offset", "1"),
        "configure_topic": ("--set", "kafka.retention.ms=-1"),
        "hold_records": held,
        "undo_run": ("--run", undone),
    }
    if job == "delete_records":
        return deletion(names, offset)
    return [*topics(names), *more.get(job, ())]
