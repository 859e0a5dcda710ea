"""What is refused before Spark is started, by the state that a topic has."""

from typing import Any

import pytest

from ebbtide.errors import EbbtideError, RequestError, UnknownTopicError
from ebbtide.lake.reader import LakeTopic
from ebbtide.log.state.topic_state import to_properties
from ebbtide.orchestration.driver.preflight import check_form, check_request
from tests.lake_sandbox import state_of

STATES = {0: state_of(log_start_offset=5), 1: state_of()}


class FakeLake:
    """A lake of log.deleted and log.compacted."""

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
        ("erase_keys", "log.deleted", {}, "to hold compact, found delete: "),
        ("export_segments", "log.deleted", {"partitions": [1, 7]}, "0, 1, found 7$"),
        ("mark_tombstones", "log.deleted", {"from_offset": ["0:3"]}, "found 3"),
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
        check_request(FakeLake(), asked)  # type: ignore[arg-type]


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
    check_request(FakeLake(), asked)  # type: ignore[arg-type]
