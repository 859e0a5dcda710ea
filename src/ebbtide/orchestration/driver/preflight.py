"""Check a task's form against the lake's state, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ebbtide.errors import EbbtideError, NotCoveredError, RequestError, UnknownTopicError
from ebbtide.lake.holds import read_holds
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.log.delete_answers import ErrorCode, answer_partition, refused, way_out
from ebbtide.log.holds import pause_of, paused_until_ended
from ebbtide.log.requests.delete_request import AtOffset, TopicRequest, parse_request_object
from ebbtide.log.requests.erase_request import Encoding, check_is_compacted, decode_keys
from ebbtide.log.requests.from_offset import offsets_to_mark_again_from, parse_from_offset
from ebbtide.log.requests.hold_request import Action, hashes_of, hold_asked
from ebbtide.log.settings.changes import check_changes, parse_changes
from ebbtide.log.settings.names import TopicName
from ebbtide.log.undo.points import UNDO_POINTS, UNDO_RUN, check_is_noted
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import OnAdopted


def check_form(lake: Lake, job: str, topics: Sequence[str], params: Mapping[str, Any]) -> None:
    """Raise EbbtideError for a topic, a setting, a partition or an offset that cannot be."""
    for name in topics:
        if not SPECS[job].needs_state:  # it may be lost, or the table is none of a topic yet
            lake.records(name)
            continue
        topic = lake.topic(name)
        check_works_on(topic, job)
        if job == "configure_topic":
            changes = parse_changes(params.get("set") or (), params.get("unset") or ())
            check_changes(topic.properties, changes)
        elif job == "erase_keys" and not topic.is_adopted:
            check_is_compacted(name, topic.config)
        elif job == UNDO_RUN:
            check_is_noted(lake.own_rows(UNDO_POINTS, topic=name), name, params["run"])
        elif job == "hold_records":
            _check_hold(lake, topic, params)
        elif job == "export_segments":
            _check_partitions(topic, params.get("partitions") or ())
        elif job == "mark_tombstones" and params.get("from_offset"):
            asked = [parse_from_offset(text) for text in params["from_offset"]]
            offsets_to_mark_again_from(topic.partitions, {}, asked)


def check_works_on(topic: LakeTopic, job: str) -> None:
    """Raise NotCoveredError if the topic was adopted and the job refuses such."""
    spec = SPECS.get(job)
    if topic.is_adopted and spec and spec.on_adopted is OnAdopted.REFUSES:
        raise NotCoveredError(
            f"expected a topic whose tables ebbtide writes, found {topic.name}, which was adopted: "
            f"{spec.why} (docs/adopt.md)"
        )


def check_known(lake: Lake, asked: Iterable[str]) -> None:
    """Raise RequestError for topics that have no table."""
    known = lake.topic_names()
    if unknown := sorted(set(asked) - set(known)):
        raise RequestError(
            f"expected topics that have a table, found {', '.join(unknown)}; "
            f"the lake holds {', '.join(known) or 'no topic'}"
        )


def _check_hold(lake: Lake, topic: LakeTopic, params: Mapping[str, Any]) -> None:
    """Raise RequestError for a hold, a partition or bounds that cannot be."""
    clock, hold_id = datetime.now(UTC), params.get("hold")
    is_new = params.get("action", Action.MAKE) == Action.MAKE
    if is_new is bool(hold_id):
        raise RequestError("expected `hold` to change or end one, and none to make one")
    if params.get("partition") is not None:
        _check_partitions(topic, [params["partition"]])
    if params.get("keys") and params.get("keys_file"):
        raise RequestError("expected keys or a file of them, found both; leave one of them empty")
    keys = decode_keys(params.get("keys") or (), Encoding(params.get("encoding") or "utf-8"))
    asked = {**params, "hold_id": hold_id, "key_hashes": hashes_of(keys)}
    asked["action"] = params.get("action", Action.MAKE)
    standing = read_holds(lake, clock, topic.name, with_ended=True)
    before = next((of.hold for of in standing if of.hold.hold_id == hold_id), None)
    hold_asked(asked, topic.name, before, at=clock, run_id="")


def check_request(
    lake: Lake, request: Mapping[str, Any], *, clock: datetime, takes_part: bool = True
) -> None:
    """Raise RequestError if every partition of the request would be refused.

    If only some would, the job decides, unless `takes_part` is False: then all must be granted.
    """
    refusals = [
        refusal
        for name, of_topic in parse_request_object(request).topics.items()
        for refusal in _refusals(lake, name, of_topic, clock, takes_part=takes_part)
    ]
    lines = [refusal for refusal in refusals if refusal]
    if lines and (not takes_part or len(lines) == len(refusals)):
        raise RequestError("; ".join(lines))


def _refusals(
    lake: Lake, name: TopicName, asked: TopicRequest, clock: datetime, *, takes_part: bool
) -> list[str]:
    """Return why each partition is refused; empty for one that may be granted, or Spark tells."""
    try:
        topic = lake.topic(str(name))
        if topic.is_adopted:
            return [""]  # what has arrived since, only the table itself tells
        config, states = topic.config, topic.partitions
        holds = [of.hold for of in read_holds(lake, clock, str(name))]
    except UnknownTopicError as error:
        return [f"{ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name}: {error}"]
    except EbbtideError:
        return [""]  # the job meets the same error and writes it down
    lines = []
    for partition, selector in asked.of(states).items():
        is_offset = isinstance(selector, AtOffset)
        offset = selector.offset if isinstance(selector, AtOffset) else 0
        answer = answer_partition(name.topic, config, states, partition, offset)
        if answer.error is ErrorCode.NONE:
            # Up to which offset a time or a group reaches, only the job knows.
            moves = answer.log_start_offset > states[partition].log_start_offset
            pause = pause_of(holds, partition)
            if pause is not None and (moves if is_offset else not takes_part):
                answer = refused(ErrorCode.POLICY_VIOLATION, note=paused_until_ended(pause))
        if answer.error is ErrorCode.NONE:
            lines.append("")
            continue
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
