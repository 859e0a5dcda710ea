"""What is refused before Spark is started, by the state that a topic has."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.errors import EbbtideError, RequestError, UnknownTopicError
from ebbtide.lake.reader import LakeTopic
from ebbtide.ledger.holds import HOLDS, Hold, HoldEvent, Kind
from ebbtide.orchestration.driver import check_form, check_request
from ebbtide.state.topic_state import to_properties
from tests.lake_sandbox import state_of

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STATES = {0: state_of(log_start_offset=5), 1: state_of()}


class FakeLake:
    """A lake of log.deleted and log.compacted."""

    def __init__(self, *holds: Hold) -> None:
        self.holds = holds

    def own_cells(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return list(map(HOLDS.to_cells, self.holds))

    def held(self, name: str) -> None:
        raise UnknownTopicError(f"expected kept records of {name}, found none")

    def topic(self, name: str) -> LakeTopic:
        policies = {"log.deleted": "delete", "log.compacted": "compact"}
        if name not in policies:
            raise UnknownTopicError(f"expected a table for topic {name}, found none")
        states = [to_properties(partition, state) for partition, state in STATES.items()]
        merged = {key: value for state in states for key, value in state.items()}
        return LakeTopic(name, {"kafka.cleanup.policy": policies[name], **merged})


def request(**topics: dict[int, int]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": f"log.{topic}",
                "partitions": [{"partition": p, "offset": o} for p, o in offsets.items()],
            }
            for topic, offsets in topics.items()
        ]
    }


@pytest.mark.parametrize(
    ("job", "topic", "params", "message"),
    [
        ("clean_log", "log.no", {}, "expected a table for topic log.no, found none"),
        (
            "configure_topic",
            "log.deleted",
            {"set": ["kafka.retention.ms=soon", "kafka.nope=1"], "unset": ["spark.x"]},
            "found 'soon'; expected a topic configuration that Kafka knows, found kafka.nope;.*"
            "found 'spark.x'$",
        ),
        (
            "configure_topic",
            "log.deleted",
            {"set": ["kafka.max.compaction.lag.ms=5", "kafka.min.compaction.lag.ms=6"]},
            "found 6 > 5$",
        ),
        (
            "erase_keys",
            "log.deleted",
            {},
            "compact in kafka.cleanup.policy of log.deleted, found delete: ",
        ),
        ("export_segments", "log.deleted", {"partitions": [1, 7]}, "0, 1, found 7$"),
        ("mark_tombstones", "log.deleted", {"from_offset": ["0:3"]}, "found 3"),
        (
            "hold_records",
            "log.deleted",
            {"keys": ["a"], "keys_file": "/k", "case_id": "1", "reason": "r", "owner": "o"},
            r"found both\. Leave one empty$",
        ),
        (
            "hold_records",
            "log.deleted",
            {"action": "end"},
            "expected a hold id in `hold` to end a hold",
        ),
        ("hold_records", "log.deleted", {"action": "end", "hold": "h-1"}, "h-1 in force on"),
        ("hold_records", "log.deleted", {"partition": 7}, "0, 1, found 7$"),
    ],
)
def test_a_form_that_cannot_be(job: str, topic: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(EbbtideError, match=message):
        check_form(FakeLake(), job, [topic], params)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(no={0: 1}), "^UNKNOWN_TOPIC_OR_PARTITION: expected a table for topic log.no"),
        (request(deleted={7: 1}), "^log.deleted partition 7: UNKNOWN_.*it has 0, 1"),
        (request(deleted={0: 101}), "^log.deleted partition 0: OFFSET_OUT_OF_RANGE.* 5 to 100;"),
        (request(compacted={0: 1}), "^log.compacted partition 0: POLICY_VIOLATION.*erase_keys"),
        (request(compacted={0: 1}, no={0: 1}), "POLICY_VIOLATION.*; UNKNOWN_TOPIC"),
    ],
)
def test_a_request_that_would_be_refused_as_a_whole(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_request(FakeLake(), asked, clock=NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [
        request(deleted={0: 7}),
        request(deleted={0: 7, 1: 101}),
        request(deleted={0: -1}, no={0: 1}),
        {"topics": [{"topic": "log.deleted", "age": "P30D"}]},
    ],
)
def test_what_may_be_granted_in_part_is_for_the_job(asked: dict[str, Any]) -> None:
    check_request(FakeLake(), asked, clock=NOW)  # type: ignore[arg-type]


def test_a_part_that_would_be_refused_refuses_a_form_as_a_whole() -> None:
    asked = request(deleted={0: 7, 1: 101})
    with pytest.raises(RequestError, match=r"^log.deleted partition 1: OFFSET_OUT_OF_RANGE"):
        check_request(FakeLake(), asked, clock=NOW, takes_part=False)  # type: ignore[arg-type]


PAUSE = Hold(
    hold_id="p-1",
    event=HoldEvent.MADE,
    at=NOW,
    by="ann",
    run_id="r",
    kind=Kind.PAUSE,
    topic="log.deleted",
)


@pytest.mark.parametrize(
    ("asked", "takes_part", "is_refused"),
    [
        pytest.param(request(deleted={0: 7}), True, True, id="it would remove"),
        pytest.param(request(deleted={0: 5, 1: 7}), True, False, id="as a night asks"),
        pytest.param({"topics": [{"topic": "log.deleted", "age": "P30D"}]}, True, False),
        pytest.param({"topics": [{"topic": "log.deleted", "age": "P30D"}]}, False, True),
    ],
)
def test_a_paused_partition(asked: dict[str, Any], takes_part: bool, is_refused: bool) -> None:
    lake: Any = FakeLake(PAUSE)
    if not is_refused:
        check_request(lake, asked, clock=NOW, takes_part=takes_part)
        return
    message = "POLICY_VIOLATION .hold p-1 blocks removals.*end p-1 with hold_records.$"
    with pytest.raises(RequestError, match=message):
        check_request(lake, asked, clock=NOW, takes_part=takes_part)
