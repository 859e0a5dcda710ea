"""Run a job: its arguments, one thread a topic, and a row in `runs` for each topic."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from ebbtide.errors import (
    CommitConflictError,
    ConfigurationError,
    EbbtideError,
    ExitCode,
    ForeignChangeError,
    NotCoveredError,
    exit_code,
)
from ebbtide.iceberg.commits import Commits, commits_of
from ebbtide.iceberg.files.table_store import catalog_store
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.schema import create_runs
from ebbtide.iceberg.topics import Topic, find, was_adopted
from ebbtide.log.adopted.support import JOBS as JOBS_ON_ADOPTED
from ebbtide.log.adopted.support import OnAdopted
from ebbtide.log.reasons import Reason
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.outages import explained, is_of_gone_files
from ebbtide.runs.plan_text import render_plan
from ebbtide.runs.removed_records import count_removed
from ebbtide.runs.result_checks import problems
from ebbtide.runs.runs_table import JobAttempt, JobOutcome, append_run
from ebbtide.runs.topic_now import summary_of
from ebbtide.spark import job_log
from ebbtide.spark.jvm import find_once_for_errors

log = logging.getLogger(__name__)

TOPICS_AT_ONCE = 4
# Two erasures of a topic can meet in its marking, append, round and row: once more than that.
ATTEMPTS_ON_CONFLICT = 5
# Set in tests: a result that is not of its job's types fails the job.
STRICT = "EBBTIDE_STRICT_RESULTS"

_GONE = "a file or snapshot that was to be read is gone; planned again on what is there now"

T = TypeVar("T")
# A job's work on one topic, in a session of its own.
TopicWork = Callable[[SparkSession, TopicName], JobOutcome]
# Called when it has ended, with its counted outcome and its error.
OnEnd = Callable[[SparkSession, TopicName, JobOutcome, BaseException | None], None]


def job_parser(
    job: str, description: str, *, has_topics: bool = True, are_required: bool = True
) -> argparse.ArgumentParser:
    """Return the arguments that every job takes."""
    parser = argparse.ArgumentParser(prog=job, description=description)
    parser.set_defaults(job=job)
    if has_topics:
        parser.add_argument(
            "--topic",
            action="append",
            required=are_required,
            type=argument(TopicName.parse),
            metavar="CLUSTER.TOPIC",
            help="a topic to work on; repeat for more",
        )
    parser.add_argument(
        "--now",
        required=are_required,
        type=parse_now,
        metavar="ISO8601",
        help="the only clock of the run, such as 2026-11-22T01:00:00+00:00",
    )
    parser.add_argument("--run-id", required=True, help="names the run in lake.ebbtide.runs")
    parser.add_argument("--dag", help="the Airflow DAG that asked")
    parser.add_argument("--task", help="the Airflow task that asked")
    parser.add_argument(
        "--plan-only", action="store_true", help="print what would be done, and change nothing"
    )
    parser.add_argument("--plan-file", metavar="PATH", help="a file that the plans are added to")
    return parser


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap `parse` for argparse, so that its errors are bad arguments with their own messages."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except EbbtideError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def parse_now(text: str) -> datetime:
    """Return an ISO 8601 time with its zone."""
    try:
        now = datetime.fromisoformat(text)
        if now.tzinfo is not None:
            return now.astimezone(UTC)
    except (OverflowError, ValueError):
        pass
    raise argparse.ArgumentTypeError(f"expected an ISO 8601 time with its zone, found {text!r}")


def to_ms(moment: datetime) -> int:
    """Return milliseconds since the epoch, exactly."""
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1000 + moment.microsecond // 1000


def run_job(job: str, main: Callable[[], int]) -> int:
    """Run a job's `main`; return the exit code, also where no topic's row can record it."""
    try:
        return main()
    except Exception as failure:
        job_log.start(job)
        error = explained(failure)
        _log_failure("failed", error)
        return exit_code([error])


def run_topics(
    spark: SparkSession,
    args: argparse.Namespace,
    topics: Sequence[TopicName],
    work: TopicWork,
    *,
    clocks: Mapping[TopicName, datetime] | None = None,
    on_end: OnEnd | None = None,
) -> int:
    """Do the work on each topic, also after one failed; return the exit code.

    A topic whose rows somebody else has changed is not touched; an adopted one changes by others
    all the time. `clocks` holds each topic's `now` where the arguments have none.
    """
    work = partial(_checked, args, work)
    return run_unchecked(spark, args, topics, work, clocks=clocks, on_end=on_end)


def run_unchecked(
    spark: SparkSession,
    args: argparse.Namespace,
    topics: Sequence[TopicName],
    work: TopicWork,
    *,
    clocks: Mapping[TopicName, datetime] | None = None,
    on_end: OnEnd | None = None,
) -> int:
    """Do the work on each topic without looking for foreign changes; return the exit code."""
    work = partial(_unless_refused, args.job, work)
    job_log.start(args.job)
    find_once_for_errors(spark)
    catalog_store(spark)  # refuses a setting of it by name, before anything is done
    if not args.plan_only:
        create_runs(spark)

    def run(topic: TopicName) -> BaseException | None:
        of_topic = args if clocks is None else _with_now(args, clocks[topic])
        with job_log.about(args.job, topic):
            return _run_topic(spark, of_topic, topic, work, on_end)

    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        return exit_code(list(pool.map(run, topics)))


def _with_now(args: argparse.Namespace, now: datetime) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "now": now})


def _checked(
    args: argparse.Namespace, work: TopicWork, session: SparkSession, name: TopicName
) -> JobOutcome:
    """Do the work between two looks for foreign changes; a topic without tables needs none."""
    is_plan_only = args.plan_only
    look = check_unchanged if is_plan_only else count_own
    topic = find(session, name)
    if topic is not None and topic.is_adopted:
        on_adopted = JOBS_ON_ADOPTED[args.job]
        if on_adopted.does is OnAdopted.PASSES_BY:
            return JobOutcome(topic={"note": f"{Reason.OTHERS_WRITE}: {on_adopted.why}"})
        return work(session, name)
    if topic is not None:
        look(topic)
    before = {} if topic is None else _low_watermarks(topic)
    outcome = work(session, name)
    if is_plan_only:
        return outcome
    for partition, numbers in outcome.partitions.items():
        if partition in before:
            numbers["low_watermark_before"] = before[partition]
    try:
        if (topic := find(session, name)) is not None:
            count_own(topic)
    except ForeignChangeError as error:  # what was done is done
        outcome.error = outcome.error or error
    except CommitConflictError:  # the next job counts it
        pass
    return outcome


def _unless_refused(
    job: str, work: TopicWork, session: SparkSession, name: TopicName
) -> JobOutcome:
    """Do the work; NotCoveredError for an adopted topic, where the job refuses such."""
    on_adopted = JOBS_ON_ADOPTED.get(job)
    is_refused = on_adopted is not None and on_adopted.does is OnAdopted.REFUSES
    if on_adopted is not None and is_refused and was_adopted(session, name):
        raise NotCoveredError(
            f"expected a topic whose tables ebbtide writes, found {name}, which was adopted; {job} "
            f"does not work on such tables: {on_adopted.why} (docs/adopt.md)"
        )
    return work(session, name)


def _low_watermarks(topic: Topic) -> dict[int, int]:
    """Return the low watermark of each partition; none where a setting is wrong."""
    try:
        _ = topic.config
    except ConfigurationError:
        return {}
    return {p: topic.low_watermark(of.log_start_offset) for p, of in topic.partitions.items()}


def refuse(job: str, error: EbbtideError) -> ExitCode:
    """Log why no topic is begun; return the job's exit code."""
    job_log.start(job)
    _log_failure("refused", error)
    return ExitCode.TRANSIENT if error.transient else ExitCode.REFUSED


def _run_topic(
    spark: SparkSession,
    args: argparse.Namespace,
    topic: TopicName,
    work: TopicWork,
    on_end: OnEnd | None,
) -> BaseException | None:
    session = spark.newSession()
    started = datetime.now(UTC)
    with commits_of(args.job, args.run_id) as commits, job_log.gathering_notes() as notes:
        outcome, error = _attempt(session, topic, work)
    if not args.plan_only:
        error = _count(session, topic, outcome, commits, started, error)
        outcome.summary = summary_of(session, topic, outcome)
    if on_end is not None:
        error = _ended(partial(on_end, session, topic, outcome), error)
    ended = datetime.now(UTC)
    seconds = round((ended - started).total_seconds(), 1)
    outcome.topic["seconds"] = seconds
    attempt = JobAttempt(
        run_id=args.run_id,
        dag=args.dag,
        task=args.task,
        job=args.job,
        topic=topic,
        started=started,
        ended=ended,
        now=args.now,
    )
    for where, numbers in _noted(outcome):
        log.info("%s%s", where, numbers["note"])
    _add_notes(outcome, notes)
    if args.plan_only:
        _show_plan(args, topic, outcome, error)
    else:
        error = _written(session, attempt, outcome, error)
    if error is None:
        log.info("done in %s s", seconds)
    else:
        _log_failure("failed", error)
    return error


def _count(
    session: SparkSession,
    topic: TopicName,
    outcome: JobOutcome,
    commits: Commits,
    started: datetime,
    error: BaseException | None,
) -> BaseException | None:
    """Set the outcome's totals by the snapshots committed; `error`, or why that failed."""
    try:
        count_removed(session, topic, outcome, commits, started)
    except Exception as failure:  # the row is still to be written
        return error or explained(failure)
    return error


def _ended(
    on_end: Callable[[BaseException | None], None], error: BaseException | None
) -> BaseException | None:
    """Call `on_end`; return the error, or why that failed."""
    try:
        on_end(error)
    except Exception as failure:  # the row is still to be written
        return error or explained(failure)
    return error


def _written(
    session: SparkSession, attempt: JobAttempt, outcome: JobOutcome, error: BaseException | None
) -> BaseException | None:
    """Write the attempt's row; `error`, or else why the row could not be written."""
    try:
        if STRICT in os.environ:
            _check_result(attempt.job, outcome)
        append_run(session, attempt, outcome, error)
    except Exception as failure:  # the other topics' rows are still to be written
        lost = explained(failure)
        if error is None:
            return lost
        _log_failure("no row in runs", lost)
    return error


def _check_result(job: str, outcome: JobOutcome) -> None:
    problems_of_result = (
        list(problems(job, json.loads(outcome.to_json()))) if outcome.partitions else []
    )
    if problems_of_result:
        raise AssertionError(
            f"the result of {job} is not of its types: {'; '.join(problems_of_result)}"
        )


def _log_failure(what: str, error: BaseException) -> None:
    """Log an error; an unforeseen one comes with its traceback."""
    foreseen = isinstance(error, EbbtideError)
    log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=None if foreseen else error)


def _show_plan(
    args: argparse.Namespace, topic: TopicName, outcome: JobOutcome, error: BaseException | None
) -> None:
    """Print the plan, and add it to the file of plans; a topic that has none has only an error."""
    if error is not None and not outcome.partitions:
        return
    plan = render_plan(args.job, str(topic), outcome)
    print(plan, flush=True)
    if args.plan_file:
        with open(args.plan_file, "a") as file:
            file.write(f"{plan}\n\n")


def _add_notes(outcome: JobOutcome, notes: Sequence[str]) -> None:
    """Let the topic's note hold these too; they are in the log already."""
    if notes:
        of_job = [outcome.topic["note"]] if "note" in outcome.topic else []
        outcome.topic["note"] = "; ".join([*of_job, *notes])


def _noted(outcome: JobOutcome) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results that have a `note` to log, and where each belongs."""
    of_partitions = ((f"partition {p}: ", of) for p, of in outcome.partitions.items())
    for where, numbers in (("", outcome.topic), *of_partitions):
        if "note" in numbers:
            yield where, numbers


def _attempt(
    session: SparkSession, topic: TopicName, work: TopicWork
) -> tuple[JobOutcome, BaseException | None]:
    """Work, and work again where another writer was faster; every other error is the result."""
    for attempt in range(1, ATTEMPTS_ON_CONFLICT + 1):
        try:
            outcome = work(session, topic)
            return outcome, outcome.error
        except CommitConflictError as error:
            if attempt == ATTEMPTS_ON_CONFLICT:
                return JobOutcome(), error
            log.warning("%s (attempt %d)", error, attempt)
            time.sleep(attempt)
        except Exception as error:  # one topic's failure is not another's
            if attempt == ATTEMPTS_ON_CONFLICT or not is_of_gone_files(error):
                return JobOutcome(), explained(error)
            log.warning("%s (attempt %d)", _GONE, attempt)
            time.sleep(attempt)
    raise AssertionError("unreachable")
