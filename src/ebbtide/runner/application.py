"""Run a job: parse its command line, work on each topic in a thread, and write a row per topic.

The calls down to a job's `plan`: `run`, `JobRun.on_topics`, `on_topic`, `attempt`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

from pyspark.sql import SparkSession

from ebbtide.errors import (
    CommitConflictError,
    ConfigurationError,
    EbbtideError,
    ExitCode,
    ForeignChangeError,
    NotCoveredError,
    PlanError,
    PlanExceededError,
    SafetyError,
    StateError,
    exit_code,
    is_transient,
)
from ebbtide.iceberg.catalog import check_catalog, session_for_topic
from ebbtide.iceberg.commits import Commits, commits_of
from ebbtide.iceberg.file_changes import lost_list
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.own_tables import create_own
from ebbtide.iceberg.topics import Topic, find, load_without_state, was_adopted
from ebbtide.kafka.reasons import Reason
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.plans import (
    FOUR_EYES,
    FOUR_EYES_OF_ALL,
    PlanStep,
    approver_of,
    check_four_eyes,
    check_may_execute,
    needs_four_eyes,
    tripped,
)
from ebbtide.ledger.results import Result
from ebbtide.moments import machine_clock, to_ms
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.failures import hand_on, log_failure, refuse
from ebbtide.runner.holds import add_kept, keep_removed_by
from ebbtide.runner.job import Job, Parameters, PlanRequest, Proposal, start_spark
from ebbtide.runner.outages import explained, in_words, is_of_gone_files
from ebbtide.runner.plan_text import render_plan
from ebbtide.runner.runs_table import (
    EndedAttempt,
    JobOutcome,
    append_runs,
    count_removed,
    ended_attempt,
    summary_of,
)
from ebbtide.runner.stored_plans import (
    KeptPlan,
    check_removes_all,
    check_same_tables,
    check_within,
    find_plans,
    keep_plan,
    note_end,
    note_unanswered,
    replace_open_plans,
)
from ebbtide.runner.undo_points import note_before
from ebbtide.settings.names import TopicName
from ebbtide.spark import job_log
from ebbtide.spark.jvm import find_once_for_errors
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import JobSpec, OnAdopted

log = logging.getLogger(__name__)

TOPICS_AT_ONCE = 4
# Rows of attempts that end within this time are written by one commit.
ROWS_WAIT_S = 5.0
# Two erasures of a topic can conflict four times: when they mark, append, clean and add a row.
ATTEMPTS_ON_CONFLICT = 5
# Set in tests: a result that breaks its job's types fails the job.
STRICT = "EBBTIDE_STRICT_RESULTS"
APPROVE = "approve_plan"  # the DAG

_GONE = "a file or snapshot to read is gone, planning again on the current snapshot"


def run_job(job: str, main: Callable[[], int]) -> int:
    """Run a job's `main` and return the exit code, also for an error outside all topics."""
    try:
        return main()
    except Exception as failure:
        job_log.start(job)
        error = explained(failure)
        log_failure("failed", error)
        hand_on(error)
        return exit_code([error])


def run(job: Job[Any], argv: Sequence[str] | None = None) -> int:
    """Run a job by its command line, on topics or stored plans, and return the exit code."""
    args = parse_job(job.name, argv, job.check)
    if SPECS[job.name].is_planned and args.plan:
        return _run_stored(job, args)
    try:
        asked = job.asked(args)
    except EbbtideError as error:
        if not job.is_of_source:
            raise
        return refuse(job.name, error)
    spark = start_spark(job.name)
    code = JobRun(job, args, asked).on_topics(spark)
    if not args.plan_only:
        job.at_end(spark)
    return code


def _run_stored(job: Job[Any], args: Namespace) -> int:
    """Execute the plans named by the arguments, or record their rejection."""
    spark = start_spark(job.name)
    try:
        plans = {kept.name: kept for kept in find_plans(spark, args.plan)}
        for kept in plans.values() if args.rejected_by else ():
            check_may_execute(kept.plan, kept.events, job.name, machine_clock())
    except PlanError as error:
        return refuse(job.name, error)
    if args.unanswered:
        note_unanswered(spark, args, plans.values())
        return ExitCode.DONE
    if args.rejected_by:
        for kept in plans.values():
            kept.add(spark, args, PlanStep.REJECTED, by=args.rejected_by, note=args.approval_note)
        return ExitCode.DONE
    asked = {name: kept.plan.parameters for name, kept in plans.items()}
    return JobRun(job, args, asked, plans).on_topics(spark)


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job on topics."""

    job: Job[Any]
    args: Namespace
    asked: Mapping[TopicName, Parameters]
    # Stored plans to execute, by topic. A plan's `now` is then the run's `now` for the topic.
    plans: Mapping[TopicName, KeptPlan] = field(default_factory=dict)

    @property
    def spec(self) -> JobSpec | None:
        """The job's spec, or None if a test defined the job."""
        return SPECS.get(self.job.name)

    def now(self, name: TopicName) -> datetime:
        """Return the run's `now` for a topic."""
        now: datetime = self.plans[name].plan.now if name in self.plans else self.args.now
        return now

    def on_topics(self, spark: SparkSession) -> int:
        """Work on each topic, even if another one failed, and return the exit code."""
        job_log.start(self.job.name)
        find_once_for_errors(spark)
        check_catalog(spark)
        if not self.args.plan_only:
            create_own(spark, RUNS)
        with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
            attempts = [pool.submit(self.on_topic, spark, name) for name in self.asked]
            running = set(attempts)
            while running:
                done, running = wait(running, timeout=ROWS_WAIT_S)
                if done and not self.args.plan_only:
                    _write_rows(spark, [attempt.result() for attempt in done])
        return exit_code([attempt.result().error for attempt in attempts])

    def on_topic(self, spark: SparkSession, name: TopicName) -> EndedAttempt:
        """Work on a topic and return its attempt, whose row is not written yet.

        Try again after a commit conflict. An error is part of the result, because it must not
        end the work on other topics.
        """
        job, args, started = self.job.name, self.args, machine_clock()
        with (
            job_log.about(job, name),
            session_for_topic(spark) as session,
            job_log.gathering_notes() as notes,
        ):
            with commits_of(job, args.run_id) as commits:
                for attempt in range(1, ATTEMPTS_ON_CONFLICT + 1):
                    try:
                        outcome = self.attempt(session, name)
                        error = outcome.error
                        break
                    except Exception as failure:
                        outcome, error = JobOutcome(), _lasting(session, name, failure, attempt)
                        if error is not None:
                            break
                        time.sleep(attempt)
                if commits.snapshots:
                    error = _ended(partial(_keep_held, session, name, outcome, commits), error)
            if not args.plan_only:
                count = partial(count_removed, session, name, outcome, commits, started)
                error = _ended(lambda _: count(), error)
                outcome.summary = summary_of(session, name, outcome)
            if name in self.plans:
                note = partial(note_end, session, args, self.plans[name], outcome)
                error = _ended(note, error)
            return self._reported(name, outcome, error, started, notes)

    def _reported(
        self,
        name: TopicName,
        outcome: JobOutcome,
        error: BaseException | None,
        started: datetime,
        notes: Sequence[str],
    ) -> EndedAttempt:
        """Log the end of the work on a topic, and return its attempt."""
        args, ended = self.args, machine_clock()
        seconds = round((ended - started).total_seconds(), 1)
        outcome.topic["seconds"] = seconds
        noted = {
            "": outcome.topic,
            **{f"partition {p}: ": numbers for p, numbers in outcome.partitions.items()},
        }
        for where, numbers in noted.items():
            if "note" in numbers:
                log.info("%s%s", where, numbers["note"])
        outcome.add_notes(notes)  # already logged
        if args.plan_only:
            _show_plan(args, name, outcome, error)
        elif STRICT in os.environ:
            error = _checked_result(self.job.name, outcome, error)
        if error is None:
            log.info("done in %s s", seconds)
        else:
            log_failure("failed", error)
            if args.plan_only:  # otherwise its row records the cause
                hand_on(error, name)
        return ended_attempt(
            outcome,
            error,
            run_id=args.run_id,
            dag=args.dag,
            task=args.task,
            job=self.job.name,
            topic=str(name),
            started=started,
            ended=ended,
            now=self.now(name),
        )

    def attempt(self, session: SparkSession, name: TopicName) -> JobOutcome:
        """Plan and do the job's work on a topic; check for foreign changes before and after it.

        Raise NotCoveredError if the topic is adopted and the job refuses adopted topics.
        """
        job, spec, is_plan_only = self.job, self.spec, self.args.plan_only
        if spec and spec.on_adopted is OnAdopted.REFUSES and was_adopted(session, name):
            raise NotCoveredError(
                f"expected an own topic, found {name}, an adopted one; {job.name} does not work "
                f"on adopted tables: {spec.why} (docs/adopt.md)"
            )
        topic = find(session, name) if job.is_checked else None
        is_adopted = topic is not None and topic.is_adopted
        if is_adopted and spec is not None and spec.on_adopted is OnAdopted.DOES_NOTHING:
            return JobOutcome(topic={"note": f"{Reason.OTHERS_WRITE}: {spec.why}"})
        is_looked_at = job.is_checked and not is_adopted
        if is_looked_at and topic is not None:
            (check_unchanged if is_plan_only else count_own)(topic)
        before = _low_watermarks(topic) if is_looked_at and topic is not None else {}

        request = self._request(session, name)
        try:
            plan = job.plan(session, name, request)
        except PlanExceededError:  # of bounds; the offsets are only compared below
            if name in self.plans:
                self.plans[name].add(session, self.args, PlanStep.EXCEEDED, by=None)
            raise
        if isinstance(plan, JobOutcome):
            outcome = plan
        elif spec is None or not spec.is_planned:
            outcome = plan.outcome() if is_plan_only else job.execute(plan)
        elif name in self.plans:
            outcome = self._execute_stored(session, plan)
        elif is_plan_only:
            outcome = self._store(plan, request)
        else:
            outcome = self._execute(session, plan, request)

        if is_looked_at and not is_plan_only:
            for partition, numbers in outcome.partitions.items():
                if partition in before:
                    numbers["low_watermark_before"] = before[partition]
            try:
                if (topic := find(session, name)) is not None:
                    count_own(topic)
            except ForeignChangeError as error:  # the job's commits stay
                outcome.error = outcome.error or error
            except CommitConflictError:  # the next job counts the rows
                pass
        return outcome

    def _request(self, session: SparkSession, name: TopicName) -> PlanRequest:
        """Return the job's request for a topic, after the checks of its stored plan if any."""
        args, job, kept = self.args, self.job, self.plans.get(name)
        request = PlanRequest(
            to_ms(self.now(name)), self.asked[name], is_plan_only=args.plan_only, given=args
        )
        if kept is not None:
            self._begin_stored(session, kept)
            approver = approver_of(kept.plan, kept.events)
            bounds = kept.plan.bounds
            return request._replace(bounds=bounds, keeps_offsets=True, approved_by=approver)
        request = request._replace(parameters=job.resolve(session, name, request))
        return request._replace(
            keeps_offsets=args.plan_only or self._needs_four_eyes(session, name)
        )

    def _find(self, session: SparkSession, name: TopicName) -> Topic | None:
        """Return the topic, without its state if it is lost and the job does not need it."""
        try:
            return find(session, name)
        except StateError:
            if self.job.is_checked:
                raise
            return load_without_state(session, name)

    def _needs_four_eyes(self, session: SparkSession, name: TopicName) -> bool:
        """Return whether four eyes apply to the request and topic."""
        if not self.job.is_by_hand(self.args):
            return False
        topic = self._find(session, name)
        return topic is not None and _is_of_four_eyes(topic)

    def _store(self, plan: Proposal, request: PlanRequest) -> JobOutcome:
        """Store the plan, unless its outcome has an error."""
        outcome = plan.outcome()
        return outcome if outcome.error is not None else keep_plan(self.args, plan, request)[1]

    def _execute(self, session: SparkSession, plan: Proposal, request: PlanRequest) -> JobOutcome:
        """Execute the plan, unless a guard or four eyes require an approval."""
        job, name = self.job, plan.topic.name
        # Here, only four eyes make a request list the offsets.
        if request.keeps_offsets and job.needs_approval(plan):
            raise PlanError(
                f"expected a plan for {name} that another person has approved, because "
                f"{FOUR_EYES} is set, found a request without a plan. Nothing was changed. Make a "
                "plan with --plan-only"
            )
        removal = plan.removal
        why = "" if removal is None else tripped(str(name), plan.topic.config, removal)
        if why:
            return self._stop(session, name, request._replace(keeps_offsets=True), why)
        note_before(plan.topic, plan.touches())
        outcome: JobOutcome = job.execute(plan)
        return outcome

    def _stop(
        self, session: SparkSession, name: TopicName, request: PlanRequest, why: str
    ) -> JobOutcome:
        """Store the plan that a guard stopped, in place of an older open plan."""
        plan = self.job.plan(session, name, request)
        if isinstance(plan, JobOutcome):
            return plan
        stored, _ = keep_plan(self.args, plan, request, why)
        replace_open_plans(session, stored)
        error = SafetyError(
            f"{why}. Nothing was removed. Check the topic's settings and the run's `now`. To "
            f"remove the records of plan {stored.plan_id}, approve it in the DAG {APPROVE}"
        )
        return JobOutcome(topic={"plan": stored.plan_id}, error=error)

    def _begin_stored(self, session: SparkSession, kept: KeptPlan) -> None:
        """Check that the stored plan may be executed, and record its approval if one is given."""
        args, plan = self.args, kept.plan
        check_may_execute(plan, kept.events, self.job.name, machine_clock())
        topic = self._find(session, kept.name)
        if topic is not None:  # otherwise the job raises
            check_same_tables(plan, topic)
            if _is_of_four_eyes(topic):
                check_four_eyes(plan, args.approved_by or approver_of(plan, kept.events))
        if args.approved_by and args.approved_by != approver_of(plan, kept.events):
            by, note = args.approved_by, args.approval_note
            kept.add(session, args, PlanStep.APPROVED, by=by, note=note)

    def _execute_stored(self, session: SparkSession, plan: Proposal) -> JobOutcome:
        """Execute the new plan if it stays within the offsets of the stored plan."""
        args, kept, removes = self.args, self.plans[plan.topic.name], plan.removes()
        check_within(session, args, kept, removes)
        if not self.job.is_by_hand(args):
            check_removes_all(kept.plan, plan.topic, removes)
        note_before(plan.topic, plan.touches())
        outcome: JobOutcome = self.job.execute(plan)
        outcome.topic["plan"] = kept.plan.plan_id
        return outcome


def _is_of_four_eyes(topic: Topic) -> bool:
    return needs_four_eyes(topic.properties, os.environ.get(FOUR_EYES_OF_ALL))


def _low_watermarks(topic: Topic) -> dict[int, int]:
    """Return the low watermark of each partition, or nothing if a setting is wrong."""
    try:
        _ = topic.config
    except ConfigurationError:
        return {}
    return {p: topic.low_watermark(state.log_start_offset) for p, state in topic.partitions.items()}


def _lasting(
    session: SparkSession, name: TopicName, failure: Exception, attempt: int
) -> BaseException | None:
    """Return the error that ends the work on a topic, or None if another attempt can help."""
    is_conflict = isinstance(failure, CommitConflictError)
    if not is_conflict and not is_of_gone_files(failure):
        return explained(failure)
    if attempt == ATTEMPTS_ON_CONFLICT:
        return _gone_for_good(session, name, failure) or explained(failure)
    log.warning("%s (attempt %d)", failure if is_conflict else _GONE, attempt)
    return None


def _gone_for_good(
    session: SparkSession, name: TopicName, error: BaseException
) -> EbbtideError | None:
    """Return the error for a file or snapshot that is missing in every attempt, or None."""
    is_of_ebbtide = isinstance(error, EbbtideError)
    is_gone = isinstance(error.__cause__, FileNotFoundError)  # a data file, read without Iceberg
    if not (is_gone if is_of_ebbtide else is_of_gone_files(error)):
        return None
    found = _lost_list_of(session, name) or in_words(error)
    # A retry does not help any more.
    found = found.removesuffix(". Run the job again")
    outcome = ForeignChangeError(
        f"expected all files and snapshots of the tables of {name}, found one missing in "
        f'{ATTEMPTS_ON_CONFLICT} attempts: {found}. To repair the table, see "Files that are '
        'gone" in docs/troubleshooting.md'
    )
    outcome.__cause__ = error
    return outcome


def _lost_list_of(session: SparkSession, name: TopicName) -> str:
    """Describe the table of the topic whose newest manifest list is missing; "" if none is."""
    try:
        tables = (lost_list(session, table) for table in (name.records_table, name.batches_table))
        lost = next((found for found in tables if found is not None), None)
    except Exception:  # the first error counts
        lost = None
    if lost is None:
        return ""
    return (
        f"snapshot {lost.snapshot} of {lost.table} without its manifest list {lost.path}. Iceberg "
        "deletes the list if the catalog commits and then answers with an error: look for a "
        f"gateway that repeats requests. The snapshot before it is {lost.parent}"
    )


def _keep_held(
    session: SparkSession,
    name: TopicName,
    outcome: JobOutcome,
    commits: Commits,
    error: BaseException | None,
) -> None:
    """Copy removed records of holds made during the job, even if the job failed."""
    topic = find(session, name)
    if topic is not None and (kept := keep_removed_by(topic, commits)):
        add_kept(outcome.topic.setdefault("copied_for_holds", {}), kept)


def _ended(
    on_end: Callable[[BaseException | None], None], error: BaseException | None
) -> BaseException | None:
    """Call `on_end`, and return the error, or else the failure of the call."""
    try:
        on_end(error)
    except Exception as failure:  # the row must still be written
        return error or explained(failure)
    return error


def _show_plan(
    args: Namespace, topic: TopicName, outcome: JobOutcome, error: BaseException | None
) -> None:
    """Print the plan and append it to the plan file, unless the topic has only an error."""
    if error is not None and not outcome.partitions:
        return
    plan = render_plan(args.job, str(topic), outcome)
    print(plan, flush=True)
    if args.plan_file:
        with open(args.plan_file, "a") as file:
            file.write(f"{plan}\n\n")


def _write_rows(spark: SparkSession, ended: Sequence[EndedAttempt]) -> None:
    """Write the attempts' rows by one commit; an attempt without its row counts as failed.

    If the commit fails, write each row alone, because a single bad row may be the cause. After a
    transient error, write none: the rows may have been committed.
    """
    failure = _lost(spark, ended)
    if failure is None:
        return
    is_passing = is_transient(failure)
    for attempt in ended:
        if (lost := failure if is_passing else _lost(spark, [attempt])) is not None:
            what = "failed" if attempt.error is None else "no row in runs"
            topic = TopicName.parse(attempt.run.topic)
            with job_log.about(attempt.run.job, topic):
                log_failure(what, lost)
            hand_on(lost, topic)
            attempt.error = attempt.error or lost


def _lost(spark: SparkSession, ended: Sequence[EndedAttempt]) -> BaseException | None:
    """Write the rows by one commit, and return the error if it failed."""
    try:
        append_runs(spark, ended)
    except Exception as failure:
        return explained(failure)
    return None


def _checked_result(
    job: str, outcome: JobOutcome, error: BaseException | None
) -> BaseException | None:
    """Return the error, or else one if the result breaks its job's types."""
    result = json.loads(json.dumps(outcome.result()))
    wrong = list(problems(job, result)) if outcome.partitions else []
    if error is None and wrong:
        return AssertionError(f"the result of {job} breaks its types: {'; '.join(wrong)}")
    return error


def problems(job: str, result: Result) -> Iterator[str]:
    """Yield each field of a result that breaks its job's types: missing, unknown or mistyped."""
    if job not in SPECS:
        yield f"no spec declares {job}"
        return
    of_partition, of_topic = SPECS[job].result
    yield from _problems("the topic", of_topic, result["topic"])
    for partition, numbers in result["partitions"].items():
        yield from _problems(f"partition {partition}", of_partition, numbers)


def _problems(where: str, kind: type, numbers: Mapping[str, Any]) -> Iterator[str]:
    types, described = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    required = {name for name, hint in described.items() if get_origin(hint) is not NotRequired}
    yield from (f"{where} has no {name}" for name in sorted(required - numbers.keys()))
    for name, value in numbers.items():
        if name not in types:
            yield f"{where} has an unknown {name}"
        elif not _is_of(types[name], value):
            yield f"{where} has {name} = {value!r}, which is no {types[name]}"


def _is_of(kind: Any, value: object) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is UnionType:
        return any(_is_of(one, value) for one in get_args(kind))
    kind = get_origin(kind) or kind
    if kind in (int, float, bool, str, NoneType):
        return type(value) is kind or (kind is float and type(value) is int)
    return isinstance(value, Mapping if kind is dict else kind)
