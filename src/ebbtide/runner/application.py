"""Run a job: one thread a topic, and a row in `runs` for each topic."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from functools import partial
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

from pyspark.sql import SparkSession

from ebbtide.errors import (
    CAUSES_FILE,
    CommitConflictError,
    ConfigurationError,
    EbbtideError,
    ExitCode,
    ForeignChangeError,
    NotCoveredError,
    exit_code,
    is_transient,
)
from ebbtide.iceberg.catalog import check_catalog, session_for_topic
from ebbtide.iceberg.commits import Commits, commits_of
from ebbtide.iceberg.file_changes import lost_list
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.own_tables import create_runs
from ebbtide.iceberg.topics import Topic, find, was_adopted
from ebbtide.kafka.reasons import Reason
from ebbtide.ledger.results import Result
from ebbtide.runner.holds import add_kept, keep_removed_by
from ebbtide.runner.outages import explained, in_words, is_of_gone_files
from ebbtide.runner.proposals import render_plan
from ebbtide.runner.runs_table import (
    EndedAttempt,
    JobOutcome,
    append_runs,
    count_removed,
    ended_attempt,
    summary_of,
)
from ebbtide.settings.names import TopicName
from ebbtide.spark import job_log
from ebbtide.spark.jvm import find_once_for_errors
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import OnAdopted


def problems(job: str, result: Result) -> Iterator[str]:
    """Yield where a result breaks its job's types: a missing or unknown field, or a wrong type."""
    if job not in SPECS:
        yield f"nobody says what {job} says"
        return
    of_partition, of_topic = SPECS[job].result
    yield from _problems("the topic", of_topic, result["topic"])
    for partition, numbers in result["partitions"].items():
        yield from _problems(f"partition {partition}", of_partition, numbers)


def _problems(where: str, kind: type, numbers: Mapping[str, Any]) -> Iterator[str]:
    types, described = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    required = {name for name, of in described.items() if get_origin(of) is not NotRequired}
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


log = logging.getLogger(__name__)

TOPICS_AT_ONCE = 4
# For so long an attempt's row waits for those of other topics, to be written by one commit.
ROWS_WAIT_S = 5.0
# Two erasures of a topic can meet in its marking, append, round and row: once more than that.
ATTEMPTS_ON_CONFLICT = 5
# Set in tests: a result that is not of its job's types fails the job.
STRICT = "EBBTIDE_STRICT_RESULTS"

_GONE = "a file or snapshot that was to be read is gone; planned again on what is there now"

# A job's work on one topic, in a session of its own.
TopicWork = Callable[[SparkSession, TopicName], JobOutcome]
# Called when it has ended, with its counted outcome and its error.
OnEnd = Callable[[SparkSession, TopicName, JobOutcome, BaseException | None], None]


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
        _hand_on(error)
        return exit_code([error])


def run_topics(
    spark: SparkSession,
    args: argparse.Namespace,
    topics: Sequence[TopicName],
    work: TopicWork,
    *,
    clocks: Mapping[TopicName, datetime] | None = None,
    on_end: OnEnd | None = None,
    is_checked: bool = True,
) -> int:
    """Do the work on each topic, also after one failed; return the exit code.

    A topic whose rows somebody else has changed is not touched, unless it is not to be checked; an
    adopted one changes by others all the time. `clocks` holds each topic's `now` where the
    arguments have none.
    """
    job_log.start(args.job)
    find_once_for_errors(spark)
    check_catalog(spark)
    if not args.plan_only:
        create_runs(spark)

    def run(topic: TopicName) -> EndedAttempt:
        now = args.now if clocks is None else clocks[topic]
        of_topic = argparse.Namespace(**{**vars(args), "now": now})
        on_topic = partial(_on_topic, args, work, is_checked=is_checked)
        with job_log.about(args.job, topic), session_for_topic(spark) as session:
            return _run_topic(session, of_topic, topic, on_topic, on_end)

    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        attempts = [pool.submit(run, topic) for topic in topics]
        running = set(attempts)
        while running:
            done, running = wait(running, timeout=ROWS_WAIT_S)
            if done and not args.plan_only:
                _write_rows(spark, [attempt.result() for attempt in done])
    return exit_code([attempt.result().error for attempt in attempts])


def _write_rows(spark: SparkSession, ended: Sequence[EndedAttempt]) -> None:
    """Write the attempts' rows by one commit; an attempt whose row cannot be written has failed.

    One row may be the reason that none was written, so each is tried alone, unless a retry of the
    job can help: the state of a commit may be unknown then.
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
                _log_failure(what, lost)
            _hand_on(lost, topic)
            attempt.error = attempt.error or lost


def _lost(spark: SparkSession, ended: Sequence[EndedAttempt]) -> BaseException | None:
    """Write the rows by one commit; return why that failed, or None."""
    try:
        append_runs(spark, ended)
    except Exception as failure:
        return explained(failure)
    return None


def _on_topic(
    args: argparse.Namespace,
    work: TopicWork,
    session: SparkSession,
    name: TopicName,
    *,
    is_checked: bool,
) -> JobOutcome:
    """Do the work between two looks for foreign changes; a topic without tables needs none.

    Raise NotCoveredError for an adopted topic, where the job refuses such.
    """
    spec = SPECS.get(args.job)
    if spec and spec.on_adopted is OnAdopted.REFUSES and was_adopted(session, name):
        raise NotCoveredError(
            f"expected a topic whose tables ebbtide writes, found {name}, which was adopted; "
            f"{args.job} does not work on such tables: {spec.why} (docs/adopt.md)"
        )
    topic = find(session, name) if is_checked else None
    is_adopted = topic is not None and topic.is_adopted
    if is_adopted and spec is not None and spec.on_adopted is OnAdopted.PASSES_BY:
        return JobOutcome(topic={"note": f"{Reason.OTHERS_WRITE}: {spec.why}"})
    if is_adopted or not is_checked:
        return work(session, name)
    is_plan_only = args.plan_only
    look = check_unchanged if is_plan_only else count_own
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
    _hand_on(error)
    return ExitCode.TRANSIENT if error.transient else ExitCode.REFUSED


def _run_topic(
    session: SparkSession,
    args: argparse.Namespace,
    topic: TopicName,
    work: TopicWork,
    on_end: OnEnd | None,
) -> EndedAttempt:
    """Do the work on a topic; return the attempt, whose row is still to be written."""
    started = datetime.now(UTC)
    with commits_of(args.job, args.run_id) as commits, job_log.gathering_notes() as notes:
        outcome, error = _attempt(session, topic, work)
        if commits.snapshots:
            error = _ended(partial(_keep_held, session, topic, outcome, commits), error)
    if not args.plan_only:
        error = _ended(lambda _: count_removed(session, topic, outcome, commits, started), error)
        outcome.summary = summary_of(session, topic, outcome)
    if on_end is not None:
        error = _ended(partial(on_end, session, topic, outcome), error)
    ended = datetime.now(UTC)
    seconds = round((ended - started).total_seconds(), 1)
    outcome.topic["seconds"] = seconds
    noted = {"": outcome.topic, **{f"partition {p}: ": n for p, n in outcome.partitions.items()}}
    for where, numbers in noted.items():
        if "note" in numbers:
            log.info("%s%s", where, numbers["note"])
    outcome.add_notes(notes)  # they are in the log already
    if args.plan_only:
        _show_plan(args, topic, outcome, error)
    elif STRICT in os.environ:
        error = _checked_result(args.job, outcome, error)
    if error is None:
        log.info("done in %s s", seconds)
    else:
        _log_failure("failed", error)
        if args.plan_only:  # else its row records the cause
            _hand_on(error, topic)
    return ended_attempt(
        outcome,
        error,
        run_id=args.run_id,
        dag=args.dag,
        task=args.task,
        job=args.job,
        topic=str(topic),
        started=started,
        ended=ended,
        now=args.now,
    )


def _keep_held(
    session: SparkSession,
    name: TopicName,
    outcome: JobOutcome,
    commits: Commits,
    error: BaseException | None,
) -> None:
    """Copy what the job removed and a hold covers that was made meanwhile, also where it failed."""
    topic = find(session, name)
    if topic is not None and (kept := keep_removed_by(topic, commits)):
        add_kept(outcome.topic.setdefault("kept_by_holds", {}), kept)


def _ended(
    on_end: Callable[[BaseException | None], None], error: BaseException | None
) -> BaseException | None:
    """Call `on_end`; return the error, or why that failed."""
    try:
        on_end(error)
    except Exception as failure:  # the row is still to be written
        return error or explained(failure)
    return error


def _checked_result(
    job: str, outcome: JobOutcome, error: BaseException | None
) -> BaseException | None:
    """Return the error, or else one that says how the result is not of its job's types."""
    result = json.loads(json.dumps(outcome.result()))
    wrong = list(problems(job, result)) if outcome.partitions else []
    if error is None and wrong:
        return AssertionError(f"the result of {job} is not of its types: {'; '.join(wrong)}")
    return error


def _log_failure(what: str, error: BaseException) -> None:
    """Log an error; an unforeseen one comes with its traceback."""
    foreseen = isinstance(error, EbbtideError)
    log.error(
        "%s: %s: %s",
        what,
        type(error).__name__,
        in_words(error),
        exc_info=None if foreseen else error,
    )


def _hand_on(error: BaseException, topic: TopicName | None = None) -> None:
    """Add a cause to the file that Airflow reads, if it asks for one."""
    add_cause(type(error).__name__, in_words(error), topic)


def add_cause(error_class: str | None, message: str, topic: TopicName | None = None) -> None:
    """Add a cause to the file that Airflow reads; one without a class is of the arguments."""
    if path := os.environ.get(CAUSES_FILE):
        about = None if topic is None else str(topic)
        with open(path, "a") as file:
            file.write(json.dumps([about, error_class, message]) + "\n")


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
                return JobOutcome(), _gone_for_good(session, topic, error) or error
            log.warning("%s (attempt %d)", error, attempt)
            time.sleep(attempt)
        except Exception as error:  # one topic's failure is not another's
            if not is_of_gone_files(error):
                return JobOutcome(), explained(error)
            if attempt == ATTEMPTS_ON_CONFLICT:
                lasting = _gone_for_good(session, topic, error)
                return JobOutcome(), lasting or explained(error)
            log.warning("%s (attempt %d)", _GONE, attempt)
            time.sleep(attempt)
    raise AssertionError("unreachable")


def _gone_for_good(
    session: SparkSession, name: TopicName, error: BaseException
) -> EbbtideError | None:
    """Return what to do about a file that a table of the topic names and that stays gone."""
    is_of_ebbtide = isinstance(error, EbbtideError)
    is_gone = isinstance(error.__cause__, FileNotFoundError)  # a data file, read without Iceberg
    if not (is_gone if is_of_ebbtide else is_of_gone_files(error)):
        return None
    found = _lost_list_of(session, name) or in_words(error)
    outcome = ForeignChangeError(
        f"expected the files and snapshots that the tables of {name} name, found one gone in "
        f"{ATTEMPTS_ON_CONFLICT} attempts: {found}. The way out is in docs/operations.md, under "
        "files that are gone"
    )
    outcome.__cause__ = error
    return outcome


def _lost_list_of(session: SparkSession, name: TopicName) -> str:
    """Return which table of the topic has lost the list of its newest manifests, if one has."""
    try:
        tables = (lost_list(session, table) for table in (name.records_table, name.batches_table))
        lost = next((of for of in tables if of is not None), None)
    except Exception:  # the first error counts
        lost = None
    if lost is None:
        return ""
    return (
        f"snapshot {lost.snapshot} of {lost.table} without its list of manifests {lost.path}, "
        "which Iceberg deletes after a commit that the catalog made and then refused: look for a "
        f"gateway that repeats requests. Snapshot {lost.parent} is the one before it"
    )
