"""The Airflow operator that runs one of ebbtide's jobs by spark-submit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from ebbtide.errors import CAUSES_FILE, ExitCode
from ebbtide.lake.reader import Lake, open_lake
from ebbtide.lake.runs import newest
from ebbtide.ledger.own_tables import Run
from ebbtide.orchestration.driver import (
    TaskAttempt,
    attempt_of,
    check_form,
    check_request,
    check_spark_connection,
    connections_needed,
    connections_of_topics,
    explained,
    in_environment,
    set_in_environment,
)
from ebbtide.orchestration.driver_inputs import (
    DriverFiles,
    check_arguments,
    driver_files,
    hidden_of_params,
    options_of_params,
    paths,
)
from ebbtide.orchestration.night import LowWatermark, low_watermarks_of_state, nothing_to_do
from ebbtide.orchestration.outcome import (
    TaskOutcome,
    cause_of_submit,
    named,
    request_of,
    unfinished,
)
from ebbtide.orchestration.pool import SPARK_POOL
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.delete_request import parse_request
from ebbtide.specs.job_spec import JobSpec
from ebbtide.specs.params import JobParam

if TYPE_CHECKING:
    from airflow.sdk import Context

PLAN = "plan"  # the key of the XCom


class Problem(NamedTuple):
    """A failure of spark-submit."""

    message: str  # in one line
    can_retry: bool  # by its exit code


class EbbtideJobOperator(SparkSubmitOperator):
    """Run `jobs/<job>.py` by spark-submit; return log start and low watermark by partition.

    :param topics: Topics to run on. None: the job chooses.
    :param after: Stage before this one. Topics that failed there are skipped.
    :param request: DeleteRecords request, which the job reads from a file.
    :param request_from: Stage whose log start offsets become a DeleteRecords request.
    :param needs_spark: Start Spark even if the topics' state shows no work.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "topics",
        "request",
    )

    def __init__(
        self,
        *,
        job: str,
        topics: Sequence[str] | None = None,
        after: str | None = None,
        request: Mapping[str, Any] | None = None,
        request_from: str | None = None,
        needs_spark: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=f"ebbtide {job}", **{"pool": SPARK_POOL, **kwargs})
        self.job = job
        self.topics = topics
        self.after = after
        self.request = request
        self.request_from = request_from
        self.needs_spark = needs_spark

    @property
    def label(self) -> str:
        """The name of the mapped task: its first topics."""
        return named(list(self.topics or ()))

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return SPECS[self.job]

    @property
    def asked(self) -> Sequence[JobParam]:
        """The Params that the job takes."""
        return self.spec.asked

    def execute(self, context: Context) -> list[LowWatermark]:  # type: ignore[override]
        """Run the topics that this task has not done yet in this DAG run. Answer for all topics."""
        with explained(context):
            return self._execute(context, attempt_of(context))

    def _execute(self, context: Context, attempt: TaskAttempt) -> list[LowWatermark]:
        topics = self._healthy(context, attempt)
        with open_lake() as lake:
            self._check(lake, context, topics)
            before = attempts(lake, attempt, self.job)
            left = None if topics is None else unfinished(topics, before, attempt.is_retry)
            answers = self._answer_from_state(lake, left or [], attempt)
        answered = {answer["topic"] for answer in answers}
        to_run = None if left is None else [topic for topic in left if topic not in answered]
        for topic in set(topics or ()) - set(left or ()):
            self.log.info("ebbtide: %s: %s: skipped, done in an earlier attempt", self.job, topic)
        problem = self._submit(context, attempt, to_run) if to_run != [] else None
        if self._only_plans(context):
            return self._settle_plan(problem)
        with open_lake() as lake:
            message = None if problem is None else problem.message
            outcome = TaskOutcome.of(topics, answers, attempts(lake, attempt, self.job), message)
        return self._settle(context, outcome)

    def _check(self, lake: Lake, context: Context, topics: Sequence[str] | None) -> None:
        """Raise EbbtideError for wrong Params before Spark is started."""
        if topics is not None and len(topics) == 1:  # one of several must not stop all others
            check_form(lake, self.job, topics, context["params"])
        if self.request is not None:
            check_request(lake, self.request, clock=attempt_of(context).now)

    def _healthy(self, context: Context, attempt: TaskAttempt) -> list[str] | None:
        """Return the topics that passed the stage before, or None if the job chooses topics."""
        if self.topics is None or self.after is None:
            return None if self.topics is None else list(self.topics)
        ti = context["ti"]
        handed_on = ti.xcom_pull(task_ids=self.after, map_indexes=ti.map_index) or []
        equals = {"run_id": attempt.run_id, "dag": attempt.dag, "task": self.after}
        with open_lake() as lake:
            before = newest(lake.attempts(attempt.since, **equals)).values()
        healthy = {run.topic for run in before if run.succeeded}
        healthy |= {answer["topic"] for answer in handed_on}
        for topic in self.topics:
            if topic not in healthy:
                self.log.warning(
                    "ebbtide: %s: %s: skipped, it did not pass %s", self.job, topic, self.after
                )
        if not healthy.intersection(self.topics):
            raise AirflowSkipException(f"{self.job}: no topic of this group passed {self.after}")
        return [topic for topic in self.topics if topic in healthy]

    def _answer_from_state(
        self, lake: Lake, topics: Sequence[str], attempt: TaskAttempt
    ) -> list[LowWatermark]:
        """Return the answers for topics whose state shows nothing to do, without Spark."""
        answers: list[LowWatermark] = []
        needs_spark = self.needs_spark or not self.spec.needs_state
        is_certain = self.request is None and not needs_spark
        for name in topics if is_certain else ():
            try:
                topic = lake.topic(name)
                reason = nothing_to_do(self.job, topic, attempt.now_ms, lake)
                of_topic = low_watermarks_of_state(topic) if reason else []
            except Exception as error:  # the job fails with the same error and records it
                self.log.warning(
                    "ebbtide: %s: %s: its state cannot be read, so the job runs: %s",
                    self.job,
                    name,
                    error,
                )
                continue
            if reason:
                self.log.info("ebbtide: %s: %s: nothing to do, %s", self.job, name, reason)
                answers += of_topic
        if answers and len({answer["topic"] for answer in answers}) == len(topics):
            self.log.info("ebbtide: %s: no topic has work, Spark is not started", self.job)
        return answers

    def _submit(
        self, context: Context, attempt: TaskAttempt, topics: list[str] | None
    ) -> Problem | None:
        """Run the job. Return the failure of spark-submit, or None if it succeeded."""
        check_spark_connection(self._conn_id)
        request = self._request(context, topics or ())
        self.log.info("ebbtide: %s: started for %s", self.job, ", ".join(topics or ["its source"]))
        started = time.monotonic()
        try:
            hidden = hidden_of_params(context["params"], self.asked)
            with driver_files(request) as files:
                connections = self._prepare(context, attempt, topics, request, files)
                check_arguments(self.application_args or ())
                variables = {**hidden, CAUSES_FILE: str(files.causes)}
                try:
                    with in_environment(connections), set_in_environment(variables):
                        super().execute(context)
                except AirflowException as error:
                    return self._problem(str(error), files.read_causes())
                self._show_plan(context, files.read_plan())
        finally:
            seconds = time.monotonic() - started
            self.log.info("ebbtide: %s: ended after %.1f s", self.job, seconds)
        return None

    def _problem(self, message: str, causes: Sequence[str]) -> Problem:
        """Return the failure of spark-submit. Raise AirflowFailException if the job refused."""
        code = self._exit_code()
        cause = cause_of_submit(message, code, causes)
        if code == ExitCode.REFUSED:
            raise AirflowFailException(f"{self.job} refused: {cause}")
        return Problem(cause, can_retry=code == ExitCode.TRANSIENT)

    def _exit_code(self) -> int | None:
        """Return spark-submit's exit code, or None if it was not started."""
        process = getattr(self._hook, "_submit_sp", None)
        return None if process is None else process.returncode

    def _prepare(
        self,
        context: Context,
        attempt: TaskAttempt,
        topics: list[str] | None,
        request: Mapping[str, Any] | None,
        files: DriverFiles,
    ) -> set[str]:
        """Set the fields for spark-submit, here because Jinja does not render them again.

        Return the Kafka connections that the driver needs.
        """
        where = paths()
        self.application = str(where.jobs / f"{self.job}.py")
        self.py_files = str(where.package_zip)
        self.application_args = self._arguments(context, attempt, topics, files)
        with open_lake() as lake:
            return self._connections(lake, context, topics or (), request)

    def _arguments(
        self,
        context: Context,
        attempt: TaskAttempt,
        topics: Sequence[str] | None,
        files: DriverFiles,
    ) -> list[str]:
        """Return the job's arguments."""
        what = [argument for topic in topics or () for argument in ("--topic", topic)]
        if files.request is not None:
            what = ["--request-file", str(files.request)]
        options = options_of_params(context["params"], self.asked)
        if self._only_plans(context):
            options += ["--plan-file", str(files.plan)]
        return [*options, *what, *attempt.options()]

    def _only_plans(self, context: Context) -> bool:
        """Return whether the job only plans and changes nothing."""
        return bool(context["params"].get("plan_only"))

    def _request(self, context: Context, topics: Sequence[str]) -> Mapping[str, Any] | None:
        if self.request is None and self.request_from is not None:
            return request_of(self._offsets(context, topics), topics)
        return self.request

    def _connections(
        self,
        lake: Lake,
        context: Context,
        topics: Sequence[str],
        request: Mapping[str, Any] | None,
    ) -> set[str]:
        """Return the Kafka connections that the job needs."""
        if self.spec.needs_connections and context["params"].get("from_source", True):
            return connections_of_topics(lake, topics, context["params"].get("connection"))
        if request is None:
            return set()
        return connections_needed(lake, parse_request(json.dumps(request)))

    def _offsets(self, context: Context, topics: Sequence[str]) -> list[LowWatermark]:
        """Return the offsets of the stage `request_from`, or else those of the topic's state."""
        ti = context["ti"]
        answers: list[LowWatermark] = (
            ti.xcom_pull(task_ids=self.request_from, map_indexes=ti.map_index) or []
        )
        missing = set(topics) - {answer["topic"] for answer in answers}
        with open_lake() as lake:
            for name in sorted(missing):
                answers += low_watermarks_of_state(lake.topic(name))
        return answers

    def _settle(self, context: Context, outcome: TaskOutcome) -> list[LowWatermark]:
        """Return the answers. If a topic failed, hand on the healthy topics and raise.

        Raise AirflowFailException if no retry can help, or else AirflowException.
        """
        if not outcome.failures:
            return outcome.answers
        context["ti"].xcom_push(key="return_value", value=outcome.answers)
        message = f"{self.job}: " + "; ".join(outcome.failures)
        raise (AirflowException if outcome.can_retry else AirflowFailException)(message)

    def _settle_plan(self, problem: Problem | None) -> list[LowWatermark]:
        """Raise if the plan could not be made. A plan writes no row in `runs`."""
        if problem is None:
            return []
        raise (AirflowException if problem.can_retry else AirflowFailException)(problem.message)

    def _show_plan(self, context: Context, plan: str) -> None:
        """Log the plan, and hand it on to report_run."""
        if plan:
            self.log.info("%s", plan)
            context["ti"].xcom_push(key=PLAN, value=plan)


def attempts(lake: Lake, attempt: TaskAttempt, job: str) -> dict[str, Run]:
    """Return the newest attempt of this task's job in this DAG run, by topic."""
    equals = {"run_id": attempt.run_id, "dag": attempt.dag, "task": attempt.task, "job": job}
    runs = lake.runs(attempt.since, **equals)
    return {run.topic: run for run in runs}
