import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.errors import RequestError
from ebbtide.ledger.own_tables import Run
from ebbtide.orchestration.night import LowWatermark
from ebbtide.orchestration.outcome import (
    Failure,
    TaskOutcome,
    before_trace,
    cause_of,
    cause_of_submit,
    first_failures,
    request_of,
    unfinished,
)
from ebbtide.specs.by_hand import delete_request
from tests import rows

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
DIED = "spark-submit ended with exit code 137 before the job reported a cause"
NO_ROW = "spark-submit ended before the job wrote a row in runs; see the task's log"


def run_of(topic: str, error: str | None = None, *, is_transient: bool = False) -> Run:
    result = {"partitions": {"0": {"log_start_offset": 3, "low_watermark": 2}}}
    given = {"topic": topic, "is_transient": is_transient, "result": result}
    return rows.run("clean_log", WHEN, error, **given)


def mark(topic: str, log_start_offset: int = 3, low_watermark: int = 2) -> LowWatermark:
    return LowWatermark(
        topic=topic,
        partition=0,
        log_start_offset=log_start_offset,
        low_watermark=low_watermark,
    )


OK, BAD = run_of("a"), run_of("b", "broken")
AGAIN = run_of("b", "busy", is_transient=True)


@pytest.mark.parametrize(
    ("topics", "runs", "problem", "failures", "can_retry"),
    [
        pytest.param(["a"], [OK], None, [], False, id="all is well"),
        pytest.param([], [], None, [], False, id="no topic"),
        pytest.param(["a"], [OK], DIED, [], False, id="the row counts, not the exit code"),
        pytest.param(["a", "b"], [OK, BAD], DIED, ["b: SomeError: broken"], False, id="terminal"),
        pytest.param(["a", "b"], [OK, AGAIN], DIED, ["b: SomeError: busy"], True, id="transient"),
        pytest.param(["a", "b"], [OK], DIED, [f"b: {DIED}"], True, id="died half way"),
        pytest.param(["a"], [], None, [f"a: {NO_ROW}"], True, id="ended well without a row"),
        pytest.param(None, [OK], None, [], False, id="its own choice, all is well"),
        pytest.param(None, [], None, [], False, id="its own choice, nothing found"),
        pytest.param(None, [], DIED, [DIED], True, id="its own choice, died"),
        pytest.param(
            list("abcdef"), [OK], DIED, [f"b, c, d and 2 more: {DIED}"], True, id="many died"
        ),
        pytest.param(None, [OK, BAD], DIED, ["b: SomeError: broken"], False, id="one is broken"),
    ],
)
def test_what_became_of_a_task(
    topics: list[str] | None,
    runs: list[Run],
    problem: str | None,
    failures: list[str],
    can_retry: bool,
) -> None:
    outcome = TaskOutcome.of(topics, [], {run.topic: run for run in runs}, problem)
    assert (outcome.failures, outcome.can_retry) == (failures, can_retry)
    assert outcome.answers == [mark(run.topic) for run in runs if run.succeeded]


HOOK = (
    "Cannot execute: spark-submit --py-files a.zip jobs/clean_log.py --run-id r. Error code is: 1."
)
OUTPUT = "\nLast spark-submit output:\n"


@pytest.mark.parametrize(
    ("message", "code", "causes", "cause"),
    [
        pytest.param(HOOK + OUTPUT + "bye", 1, ["a: X: y", "a: X: y", "b: Z"], "a: X: y; b: Z"),
        pytest.param(HOOK, 137, [], f"{DIED}; see the task's log"),
        pytest.param(HOOK + OUTPUT + "\nKilled\n", 137, [], f"{DIED}: Killed"),
        pytest.param(
            HOOK + OUTPUT + "INFO x\njava.lang.NoClassDefFoundError: a/B\n\tat c.D\nINFO end",
            137,
            [],
            f"{DIED}: java.lang.NoClassDefFoundError: a/B",
        ),
        pytest.param("expected x,\nfound y", None, [], "expected x,; found y"),
    ],
)
def test_why_spark_submit_failed_without_its_command_line(
    message: str, code: int | None, causes: list[str], cause: str
) -> None:
    assert cause_of_submit(message, code, causes) == cause


def test_answers_from_state_stand() -> None:
    outcome = TaskOutcome.of(["a", "b"], [mark("b", 9, 9)], {"a": OK}, None)
    assert outcome.answers == [mark("b", 9, 9), mark("a")]


@pytest.mark.parametrize(
    ("is_retry", "left"),
    [
        pytest.param(True, ["b", "new"], id="a retry leaves terminal failures"),
        pytest.param(False, ["b", "c", "new"], id="a cleared task tries them again"),
    ],
)
def test_what_a_try_has_to_do(is_retry: bool, left: list[str]) -> None:
    runs = {"a": OK, "b": AGAIN, "c": run_of("c", "broken")}
    assert unfinished(["a", "b", "c", "new"], runs, is_retry) == left


def test_a_failure_is_named_with_its_first_stage() -> None:
    handed_on = {"mark": {"a", "b", "c"}, "clean": {"a", "c"}, "expire": {"a"}}
    runs = {("b", "clean"): BAD}
    assert first_failures(["a", "b", "c"], handed_on, runs) == [
        Failure("b", "clean", "SomeError: broken"),
        Failure("c", "expire", NO_ROW),
    ]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("expected x, found y", "expected x, found y"),
        ("\n  first\nsecond\n", "first"),
        (
            "An error occurred while calling o1.sql.\n: java.lang.X: why\n\tat a.b",
            "java.lang.X: why",
        ),
        ("", ""),
        ("x" * 600, "x" * 600),
    ],
)
def test_the_line_before_a_stack_trace(message: str, line: str) -> None:
    assert before_trace(message) == line


@pytest.mark.parametrize(
    ("error_class", "cause"),
    [
        pytest.param("SourceError", "SourceError: one; two", id="ours is shown whole"),
        pytest.param("ValueError", "ValueError: one", id="another may have a trace"),
        pytest.param("ExitCode", "ExitCode: one", id="a class of ours, and no error"),
        pytest.param(None, "error: one", id="unnamed"),
    ],
)
def test_a_cause_is_a_line(error_class: str | None, cause: str) -> None:
    run = dataclasses.replace(run_of("a", "one\n two\n"), error_class=error_class)
    assert cause_of(run) == cause


def test_a_run_without_words() -> None:
    assert cause_of(None) == NO_ROW


def test_a_request_to_the_replicas_holds_only_its_topics() -> None:
    assert request_of([mark("a", 7), mark("b", 9)], ["a"]) == {
        "topics": [{"topic": "a", "partitions": [{"partition": 0, "offset": 7}]}],
        "timeout_ms": 30_000,
    }


def form(**filled: Any) -> dict[str, Any]:
    """The DAG's form with nothing but this filled in."""
    empty = dict.fromkeys(("topic", "offsets", "timestamp", "age", "groups", "connection"))
    return {**empty, "timeout_ms": 5, **filled}


@pytest.mark.parametrize(
    ("filled", "topics"),
    [
        (
            {"topic": "log.a", "offsets": {"0": 7, "1": -1}},
            [
                {
                    "topic": "log.a",
                    "partitions": [{"partition": 0, "offset": 7}, {"partition": 1, "offset": -1}],
                }
            ],
        ),
        (
            {"offsets": {"log.a": {"0": 7}, "log.b": {"1": 0}}},
            [
                {"topic": "log.a", "partitions": [{"partition": 0, "offset": 7}]},
                {"topic": "log.b", "partitions": [{"partition": 1, "offset": 0}]},
            ],
        ),
        (
            {"topic": "log.a", "timestamp": "2026-01-01T00:00:00+00:00"},
            [{"topic": "log.a", "timestamp": "2026-01-01T00:00:00+00:00"}],
        ),
        ({"topic": "log.a", "age": "P30D"}, [{"topic": "log.a", "age": "P30D"}]),
        ({"topic": "log.a", "groups": ["g"]}, [{"topic": "log.a", "groups": ["g"]}]),
        (
            {"topic": "log.a", "groups": ["g"], "connection": "live"},
            [{"topic": "log.a", "groups": ["g"], "connection": "live"}],
        ),
    ],
)
def test_a_form_becomes_a_request(filled: dict[str, Any], topics: list[Any]) -> None:
    assert delete_request(form(**filled)) == {"topics": topics, "timeout_ms": 5}


NUMBER = r"^expected a partition's number and an offset of -1 or more, found "


@pytest.mark.parametrize(
    ("filled", "message"),
    [
        ({"topic": "log.a", "offsets": {"x": 1}}, NUMBER + "'x': 1$"),
        ({"topic": "log.a", "offsets": {"0": "1"}}, NUMBER + "'0': '1'$"),
        ({"topic": "log.a", "offsets": {"0": True}}, NUMBER + "'0': True$"),
        ({"topic": "log.a", "offsets": {"0": -2}}, NUMBER + "'0': -2$"),
        ({"offsets": {"0": 1}}, r"^expected a topic and offsets by partition, .*None"),
        (
            {"topic": "log.a"},
            "^expected exactly one of offsets, timestamp, age, groups in the form, found none$",
        ),
        (
            {"topic": "log.a", "offsets": {"0": 1}, "age": "P1D"},
            "^expected exactly one of .* in the form, found offsets and age$",
        ),
        ({"age": "P1D"}, r"^expected text for topic in topics\[0\], found ''$"),
        ({"topic": "log.a", "age": "30 days"}, r'^expected an ISO 8601 duration such as "P30D"'),
        ({"topic": "log.a", "timestamp": "2026-01-01T00:00:00"}, r"ISO 8601 with a zone"),
        (
            {"topic": "log.a", "age": "P1D", "connection": "live"},
            r"^expected a connection only with groups, found one with age in topics\[0\]$",
        ),
        (
            {"topic": "log.a", "offsets": {"0": 1, "00": 2}},
            r"^expected each partition once, found 0 again in topics\[0\]\.partitions\[1\]$",
        ),
    ],
)
def test_a_form_that_is_refused(filled: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        delete_request(form(**filled))
