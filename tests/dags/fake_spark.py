"""A spark-submit that writes what a job would write to `runs`, and can fail as jobs fail."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ebbtide.errors import CAUSES_FILE, EbbtideError, ExitCode, SafetyError
from ebbtide.lake.reader import open_lake
from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.erase_request import KEYS
from tests.lake_sandbox import LakeSandbox, partition_result

NO_GUARD = "expected for the job itself:"  # begins a SafetyError that no guard raised
KEEP_PLANS = {job for job, spec in SPECS.items() if spec.is_planned}
WORDS = {
    param.name: param.variable
    for spec in SPECS.values()
    for param in spec.params
    if param.variable and not param.kind.is_secret
}


@dataclass
class Submitted:
    """One command as it reached spark-submit."""

    job: str
    topics: list[str]
    options: argparse.Namespace
    command: list[str]
    connections: str | None  # what its driver would find in the environment
    keys: str | None = None  # and there
    words: dict[str, str] = field(default_factory=dict)  # and there, about people


@dataclass
class FakeSpark:
    """`failures` holds, by (job, topic), what each next attempt raises; None succeeds."""

    lake: LakeSandbox
    failures: dict[tuple[str, str], list[EbbtideError | None]] = field(default_factory=dict)
    dies_in: dict[str, int] = field(default_factory=dict)
    # By job, the causes of its next attempts: topic, class, message. None succeeds.
    causes: dict[str, list[tuple[str | None, str | None, str] | None]] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)  # jobs that begin no topic
    low_watermarks: dict[str, int] = field(default_factory=dict)  # by job; 5 where not said
    planned_records: int = 3  # that each plan removes
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)  # by job, of its plans
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)  # by job, of each partition
    totals: dict[str, dict[str, Any]] = field(default_factory=dict)  # by job, of its row
    submitted: list[Submitted] = field(default_factory=list)

    def submit(self, hook: Any, application: str) -> None:
        """What SparkSubmitHook.submit does in client mode."""
        command = hook._build_spark_submit_command(application)
        job = hook._name.removeprefix("ebbtide ")
        options = parse(hook._application_args)
        topics = self._topics_of_plans(options.plan) or topics_in(options)
        connections = os.environ.get(CONNECTIONS)
        keys = os.environ.get(KEYS)
        words = {
            name: os.environ[variable] for name, variable in WORDS.items() if variable in os.environ
        }
        self.submitted.append(Submitted(job, topics, options, command, connections, keys, words))
        if self.dies_in.get(job, 0):
            self.dies_in[job] -= 1
            fail(hook, 137, "Killed")
        if (causes := self.causes.get(job)) and (cause := causes.pop(0)) is not None:
            Path(os.environ[CAUSES_FILE]).write_text(json.dumps(cause) + "\n")
            fail(hook, ExitCode.FAILED, "INFO shutting down")
        if job in self.refuses:
            fail(hook, ExitCode.REFUSED)
        if options.rejected_by or options.unanswered:
            return
        if options.plan_only:
            Path(options.plan_file).write_text(f"{job} {', '.join(topics)}: a plan")
            for topic in topics if job in KEEP_PLANS else ():
                self.keep(job, topic, options)
            return
        errors = [self._attempt(job, topic, options) for topic in topics]
        if any(errors):
            fail(hook, ExitCode.FAILED)

    def keep(self, job: str, topic: str, options: argparse.Namespace) -> str:
        """Keep a plan as the job would; its id."""
        kept = self.lake.plan(
            topic,
            job,
            records=self.planned_records,
            run_id=options.run_id,
            dag=options.dag,
            requested_by=options.triggered_by,
            parameters={
                "connection": options.connection,
                **({"request": json.loads(options.request)} if options.request else {}),
                **self.parameters.get(job, {}),
            },
        )
        return kept.plan_id

    def _topics_of_plans(self, plan_ids: Sequence[str]) -> list[str]:
        with open_lake() as lake:
            return [plan.topic for plan in lake.plans(plan_id=plan_ids)] if plan_ids else []

    def _attempt(self, job: str, topic: str, options: argparse.Namespace) -> EbbtideError | None:
        planned = self.failures.get((job, topic), [])
        error = planned.pop(0) if planned else None
        # A guard stops the job and stores its plan; any other SafetyError has none.
        guarded = isinstance(error, SafetyError) and not str(error).startswith(NO_GUARD)
        of_topic = {"plan": self.keep(job, topic, options)} if guarded else {}
        low_watermark = self.low_watermarks.get(job, 5)
        more = self.numbers.get(job, {})
        result = partition_result(log_start_offset=5, low_watermark=low_watermark, **more)
        self.lake.run(
            topic,
            job,
            run_id=options.run_id,
            dag=options.dag,
            task=options.task,
            now=datetime.fromisoformat(options.now) if options.now else datetime.now(UTC),
            started=datetime.now(UTC),
            ended=datetime.now(UTC),
            error=error,
            partitions={} if error else {0: result},
            **({"topic": of_topic} if error else self.totals.get(job, {})),
        )
        return error


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of any job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request-file", dest="request", type=lambda file: Path(file).read_text())
    repeated = ("--topic", "--set", "--unset", "--partition", "--plan", "--from-offset")
    repeated += ("--log-start-offset", "--max-event-time-ms")
    for option in repeated:
        parser.add_argument(option, action="append", default=[])
    for option in ("--now", "--run-id", "--dag", "--task", "--plan-file"):
        parser.add_argument(option)
    for option in (
        *("--source", "--source-topic", "--key-column", "--cluster", "--target"),
        *("--connection", "--topics-pattern", "--isolation", "--run"),
    ):
        parser.add_argument(option)
    for option in ("--requested-by", "--reason", "--keys-file", "--encoding", "--timeout-ms"):
        parser.add_argument(option)
    for option in ("--triggered-by", "--approved-by", "--rejected-by", "--approval-note"):
        parser.add_argument(option)
    flags = (
        "--accept-gap",
        "--plan-only",
        "--append",
        "--certify",
        "--from-source",
        "--unanswered",
    )
    for option in (*flags, "--keep-changes"):
        parser.add_argument(option, action="store_true")
    return parser.parse_args(arguments)


def topics_in(options: argparse.Namespace) -> list[str]:
    """The topics a command names; an ingest without any finds log.found in its source."""
    if options.request:
        return [asked["topic"] for asked in json.loads(options.request)["topics"]]
    return options.topic or ["log.found"]


def fail(hook: Any, code: int, more: str = "") -> None:
    """What the hook does where spark-submit ends with `code`."""
    from airflow.sdk.exceptions import AirflowException

    hook._submit_sp = SimpleNamespace(returncode=int(code))
    output = more and f"\nLast spark-submit output:\n{more}"
    raise AirflowException(f"Cannot execute: spark-submit. Error code is: {int(code)}.{output}")
