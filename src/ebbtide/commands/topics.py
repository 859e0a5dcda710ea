"""List topics: cleanup policy, partitions, records, bytes, next delete horizon, holds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from ebbtide import open_lake
from ebbtide.commands.answer import Answer, iso_ms
from ebbtide.errors import EbbtideError
from ebbtide.lake.own_tables import AllHolds, read_all_holds
from ebbtide.lake.reader import Lake
from ebbtide.local.progress import working
from ebbtide.moments import minute
from ebbtide.text import aligned, number, size, without_empty

HEADER = (
    "topic",
    "cleanup\npolicy",
    "parti-\ntions",
    "records",
    "bytes\non disk",
    "next horizon\ndue (UTC)",
    "replicas",
    "holds",
    "enabled",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the pattern of names."""
    parser.add_argument(
        "pattern", nargs="?", default="*", help="topics to list, with * as a wildcard [all]"
    )


def answer(args: argparse.Namespace) -> Answer:
    """Return one line per topic. A topic that cannot be read shows the error instead."""
    with open_lake() as lake, working("listing the topics") as show:
        names = [name for name in lake.topic_names() if fnmatchcase(name, args.pattern)]
        holds = read_all_holds(lake, datetime.now(UTC))
        topics = []
        for done, name in enumerate(names, 1):
            show(f"reading topic {number(done)} of {number(len(names))}, {name}")
            topics.append(described(lake, name, holds))
    return Answer(_text(topics), {"topics": topics})


def described(lake: Lake, name: str, holds: AllHolds) -> dict[str, Any]:
    """Return a topic's settings, sizes and holds as JSON values."""
    of_topic = [standing for standing in holds.standings if standing.hold.topic == name]
    try:
        if name in holds.problems:
            raise holds.problems[name]
        config, summary = lake.topic(name).config, lake.summary(name)
    except EbbtideError as error:
        return {"topic": name, "problem": str(error)}
    return {
        "topic": name,
        "problem": None,
        "cleanup_policy": sorted(config.cleanup_policy or ()),
        "is_enabled": config.is_enabled,
        "partitions": summary.partitions,
        "records": summary.records,
        "bytes_on_disk": summary.file_bytes,
        "next_horizon": iso_ms(summary.next_horizon_ms),
        "next_horizon_ms": summary.next_horizon_ms,
        "replicas": len(config.replicas),
        "holds": len(of_topic),
        "holds_to_review": [s.hold.review_warning for s in of_topic if s.is_to_be_reviewed],
    }


def _text(topics: list[dict[str, Any]]) -> str:
    readable = [topic for topic in topics if topic["problem"] is None]
    lines = [aligned(*without_empty(HEADER, [_row(topic) for topic in readable]))]
    lines += [f"{topic['topic']}: {topic['problem']}" for topic in topics if topic["problem"]]
    lines += [f"{facts['topic']}: {due}" for facts in readable for due in facts["holds_to_review"]]
    return "\n".join(lines) if topics else "no topic was ingested yet, or none matches"


def _row(topic: Mapping[str, Any]) -> list[str]:
    return [
        topic["topic"],
        ",".join(topic["cleanup_policy"]) or "not set",
        number(topic["partitions"]),
        number(topic["records"]),
        size(topic["bytes_on_disk"]),
        minute(topic["next_horizon_ms"]),
        number(topic["replicas"] or None),
        number(topic["holds"] or None),
        "-" if topic["is_enabled"] else "no",
    ]
