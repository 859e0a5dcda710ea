"""Check a task's form against the lake's state, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.errors import EbbtideError, RequestError, UnknownTopicError
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.lake.undo_points import read_undo_points
from ebbtide.log.adopted.layout import LAYOUT
from ebbtide.log.delete_answers import ErrorCode, answer_partition, way_out
from ebbtide.log.requests.delete_request import AtOffset, TopicRequest, parse_request_object
from ebbtide.log.requests.erase_request import check_is_compacted
from ebbtide.log.requests.from_offset import offsets_to_mark_again_from, parse_from_offset
from ebbtide.log.settings.changes import check_changes, parse_changes
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import REPAIR
from ebbtide.log.undo.points import UNDO_RUN, check_is_noted

# These need no state: it may be lost, or the table is none of a topic yet.
_BY_THEMSELVES = frozenset({REPAIR, "adopt_table", "abandon_table"})


def check_form(lake: Lake, job: str, topics: Sequence[str], params: Mapping[str, Any]) -> None:
    """Raise EbbtideError for a topic, a setting, a partition or an offset that cannot be."""
    for name in topics:
        if job in _BY_THEMSELVES:
            lake.records(name)
            continue
        topic = lake.topic(name)
        if job == "configure_topic":
            changes = parse_changes(params.get("set") or (), params.get("unset") or ())
            check_changes(topic.properties, changes)
        elif job == "erase_keys" and LAYOUT not in topic.properties:
            check_is_compacted(name, topic.config)
        elif job == UNDO_RUN:
            check_is_noted(read_undo_points(lake, name), name, params["run"])
        elif job == "export_segments":
            _check_partitions(topic, params.get("partitions") or ())
        elif job == "mark_tombstones" and params.get("from_offset"):
            asked = [parse_from_offset(text) for text in params["from_offset"]]
            offsets_to_mark_again_from(topic.partitions, {}, asked)


def check_request(lake: Lake, request: Mapping[str, Any]) -> None:
    """Raise RequestError where every part of the request would be refused; else the job decides."""
    asked = parse_request_object(request).topics
    refusals = {name: _refusals(lake, name, of_topic) for name, of_topic in asked.items()}
    if all(refusals.values()):
        raise RequestError("; ".join(line for lines in refusals.values() for line in lines))


def _refusals(lake: Lake, name: TopicName, asked: TopicRequest) -> list[str]:
    """Return why each partition is refused; empty where one may be granted or Spark has to tell."""
    try:
        topic = lake.topic(str(name))
        if LAYOUT in topic.properties:
            return []  # what has arrived since, only the table itself tells
        config, states = topic.config, topic.partitions
    except UnknownTopicError as error:
        return [f"{ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name}: {error}"]
    except EbbtideError:
        return []  # the job meets the same error and writes it down
    lines = []
    for partition, selector in asked.of(states).items():
        offset = selector.offset if isinstance(selector, AtOffset) else 0
        answer = answer_partition(name.topic, config, states, partition, offset)
        if answer.error is ErrorCode.NONE:
            return []
        reason = answer.note or way_out(answer.error)
        lines.append(f"{name} partition {partition}: {answer.error.name} ({reason})")
    return lines


def _check_partitions(topic: LakeTopic, asked: Sequence[int]) -> None:
    unknown = sorted(set(asked) - set(topic.partitions))
    if unknown:
        raise RequestError(
            f"expected partitions of {topic.name}, {', '.join(map(str, topic.partitions))}, "
            f"found {', '.join(map(str, unknown))}"
        )
