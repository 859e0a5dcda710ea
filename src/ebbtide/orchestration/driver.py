"""The Airflow task around a Spark driver: causes of failures, connections, checks, its attempt."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from airflow.sdk.log import mask_secret

from ebbtide.errors import (
    ConfigurationError,
    EbbtideError,
    NotCoveredError,
    RequestError,
    UnknownTopicError,
)
from ebbtide.kafka.low_watermarks import ErrorCode, answer_partition, refused, way_out
from ebbtide.lake.own_tables import read_holds
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.ledger.erasure_secrets import KeyNames
from ebbtide.ledger.holds import pause_of, paused_until_ended
from ebbtide.ledger.own_tables import ERASURES, NAMES, name_of
from ebbtide.ledger.undo_points import UNDO_POINTS, UNDO_RUN, check_is_noted
from ebbtide.orchestration.driver_inputs import check_size
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.certify_request import check_is_one, check_of_erasure, parse_range
from ebbtide.specs.delete_request import AtOffset, DeleteRequest, TopicRequest, parse_request_object
from ebbtide.specs.erase_request import (
    Encoding,
    check_is_compacted,
    decode_keys,
    offsets_to_mark_again_from,
    parse_from_offset,
)
from ebbtide.specs.hold_request import Action, hashes_of, hold_asked
from ebbtide.specs.job_spec import OnAdopted
from ebbtide.specs.settings_changes import check_changes, parse_changes
from ebbtide.text import one_line

if TYPE_CHECKING:
    from airflow.sdk import Context


def states_of(context: Any, task_id: str) -> dict[str, str]:
    """Return a task's state by its name. A mapped task has a name and a state per instance."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[task_id], run_ids=[ti.run_id])
    return {name: str(state) for name, state in sorted(states.get(ti.run_id, {}).items())}


log = logging.getLogger(__name__)

CAUSE = "ebbtide_cause"  # the key of the XCom


@contextmanager
def explained(context: Context) -> Iterator[None]:
    """Log why the block failed, and hand the cause on. A permanent error prevents retries."""
    try:
        yield
    except AirflowSkipException:
        raise
    except (EbbtideError, AirflowException) as error:
        cause = str(error)
        if isinstance(error, EbbtideError):
            cause = f"{type(error).__name__}: {error}"
        log.error("ebbtide: FAILED %s", one_line(cause))
        context["ti"].xcom_push(key=CAUSE, value=one_line(cause))
        raise _kind(error)(cause) from None


def causes_of(context: Any) -> dict[str, list[str]]:
    """Return the causes that upstream tasks handed on, by task."""
    ti, causes = context["ti"], {}
    for task_id in sorted(context["task"].get_flat_relative_ids(upstream=True)):
        pulled = ti.xcom_pull(task_ids=[task_id], key=CAUSE) or []
        if of_task := [str(cause) for cause in pulled if cause]:
            causes[task_id] = list(dict.fromkeys(of_task))
    return causes


def _kind(error: Exception) -> type[AirflowException]:
    is_permanent = isinstance(error, AirflowFailException) or (
        isinstance(error, EbbtideError) and not error.transient
    )
    return AirflowFailException if is_permanent else AirflowException


# Without its Kafka provider, Airflow's form lacks the type kafka and its CLI stores it as generic.
KINDS = ("kafka", "generic")


def connections_needed(lake: Lake, request: DeleteRequest) -> set[str]:
    """Return the Kafka connections that a request names, and its topics' live replicas."""
    needed = {name for asked in request.topics.values() for name in asked.connections}
    for name in request.topics:
        try:
            needed.update(lake.topic(str(name)).config.live_replicas)
        except EbbtideError:
            continue  # the job fails with the same error and records it
    return needed


def connections_of_topics(lake: Lake, topics: Iterable[str], named: str | None) -> set[str]:
    """Return the Kafka connection `named`, and those of the topics' sources and live replicas."""
    needed = {named} if named else set()
    for name in topics:
        try:
            config = lake.topic(name).config
        except EbbtideError:
            continue  # the job fails with the same error and records it
        needed.update(config.live_replicas)
        if config.upstream is not None and config.upstream.connection is not None:
            needed.add(config.upstream.connection)
    return needed


@contextmanager
def set_in_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for spark-submit until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


@contextmanager
def in_environment(connections: Iterable[str]) -> Iterator[None]:
    """Set connections in the environment for spark-submit until the block ends.

    The operator's env_vars would show them: YARN and Kubernetes print those on the command line.
    A connection that Airflow lacks is skipped, and the job fails the topics that need it.
    """
    settings = {
        name: of_connection for name in sorted(connections) if (of_connection := _settings(name))
    }
    text = json.dumps(settings)
    remedy = "Name certificate files (ssl.ca.location) instead of their text (ssl.ca.pem)"
    check_size(text, f"the connections {', '.join(settings)}", remedy)
    with set_in_environment({CONNECTIONS: text} if settings else {}):
        yield


def _settings(name: str) -> dict[str, Any] | None:
    """Return a Kafka connection's librdkafka configuration, or None if there is no such one."""
    try:
        connection = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        log.warning("ebbtide: expected an Airflow connection %s of type kafka, found none", name)
        return None
    settings: dict[str, Any] = connection.extra_dejson
    mask_secret(settings)
    if connection.conn_type in KINDS:
        return settings
    kind = connection.conn_type
    log.warning("ebbtide: expected connection %s to be of type kafka, found %s", name, kind)
    return None


DEFAULT = "spark_default"


def check_spark_connection(
    name: str = DEFAULT, look_up: Callable[[str], Any] = BaseHook.get_connection
) -> str:
    """Return the connection's Spark master.

    Raise ConfigurationError if it is missing or has no host: Airflow would then use YARN.
    Airflow's own look-up works only in its tasks; other processes pass `in_database`.
    """
    try:
        connection = look_up(name)
    except AirflowNotFoundException:
        connection = None
    if connection is None or connection.conn_type != "spark" or not connection.host:
        raise ConfigurationError(
            f"expected connection {name} of type spark with a host, found "
            f"{'none' if connection is None else repr(connection.conn_type or '')}. Set "
            f"AIRFLOW_CONN_{name.upper()}='"
            '{"conn_type":"spark","host":"local[2]"}\' (a URI cannot hold local[2])'
        )
    return str(connection.host)


def in_database(name: str) -> Any:
    """Return a connection from the environment, a secrets backend or Airflow's database."""
    from airflow.models.connection import Connection

    return Connection.get_connection_from_secrets(name)


def check_form(lake: Lake, job: str, topics: Sequence[str], params: Mapping[str, Any]) -> None:
    """Raise EbbtideError for a wrong topic, setting, partition or offset in a form."""
    for name in topics:
        if not SPECS[job].needs_state:  # the state may be lost, or the table not adopted yet
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
        elif job == "certify_erasure":
            _check_certificate(lake, topic, params)
        elif job == "export_segments":
            _check_partitions(topic, params.get("partitions") or ())
        elif job == "mark_tombstones" and params.get("from_offset"):
            asked = [parse_from_offset(text) for text in params["from_offset"]]
            offsets_to_mark_again_from(topic.partitions, {}, asked)


def check_works_on(topic: LakeTopic, job: str) -> None:
    """Raise NotCoveredError if the topic is adopted and the job refuses adopted topics."""
    spec = SPECS.get(job)
    if topic.is_adopted and spec and spec.on_adopted is OnAdopted.REFUSES:
        raise NotCoveredError(
            f"expected one of ebbtide's own topics, found the adopted topic {topic.name}: "
            f"{spec.why} (docs/adopt.md)"
        )


def check_known(lake: Lake, asked: Iterable[str]) -> None:
    """Raise RequestError for topics that have no table."""
    known = lake.topic_names()
    if unknown := sorted(set(asked) - set(known)):
        raise RequestError(
            f"expected topics that have a table, found {', '.join(unknown)}. "
            f"The lake has {', '.join(known) or 'no topic'}"
        )


def _check_hold(lake: Lake, topic: LakeTopic, params: Mapping[str, Any]) -> None:
    """Raise RequestError for a wrong hold, partition, range or key."""
    clock, hold_id = datetime.now(UTC), params.get("hold")
    is_new = params.get("action", Action.MAKE) == Action.MAKE
    if is_new is bool(hold_id):
        raise RequestError(
            f"expected {'no hold id' if is_new else 'a hold id'} in `hold` to "
            f"{params.get('action', Action.MAKE)} a hold, found {hold_id or 'none'}"
        )
    if params.get("partition") is not None:
        _check_partitions(topic, [params["partition"]])
    if params.get("keys") and params.get("keys_file"):
        raise RequestError("expected either keys or a file of keys, found both. Leave one empty")
    keys = decode_keys(params.get("keys") or (), Encoding(params.get("encoding") or "utf-8"))
    asked = {**params, "hold_id": hold_id, "key_hashes": hashes_of(keys)}
    asked["action"] = params.get("action", Action.MAKE)
    standing = read_holds(lake, clock, topic.name, with_ended=True)
    before = next(
        (hold_standing.hold for hold_standing in standing if hold_standing.hold.hold_id == hold_id),
        None,
    )
    hold_asked(asked, topic.name, before, at=clock, run_id="")


def _check_certificate(lake: Lake, topic: LakeTopic, params: Mapping[str, Any]) -> None:
    """Raise RequestError for a wrong range or key, or for other keys than an erasure's."""
    typed, file = params.get("keys") or (), params.get("keys_file")
    offsets = parse_range(params)
    check_is_one(keys=bool(typed), file=bool(file), offsets=offsets is not None)
    if offsets is not None:
        _check_partitions(topic, [offsets.partition])
    keys = decode_keys(typed, Encoding(params.get("encoding") or "utf-8"))
    if (run_id := params.get("erasure")) and not file:
        rows = lake.own_cells(ERASURES, NAMES, topic=topic.erased_under, run_id=run_id)
        names = KeyNames.of(topic.erased_under)
        if names.secret is None and any(row.get("key_hmac") for row in rows):
            return  # the secret may be on the driver's machine only: the job compares the keys
        given = list(map(names.names, keys))
        check_of_erasure(topic.name, run_id, set(map(name_of, rows)), given)


def check_request(
    lake: Lake, request: Mapping[str, Any], *, clock: datetime, takes_part: bool = True
) -> None:
    """Raise RequestError if every partition of the request would be refused.

    If only some would be refused, the job decides. With `takes_part=False`, raise for them too.
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
    """Return a reason for each refused partition, and "" for each that the job must decide."""
    try:
        topic = lake.topic(str(name))
        if topic.is_adopted:
            return [""]  # only the job reads what has arrived since
        config, states = topic.config, topic.partitions
        holds = [standing.hold for standing in read_holds(lake, clock, str(name))]
    except UnknownTopicError as error:
        return [f"{ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name}: {error}"]
    except EbbtideError:
        return [""]  # the job fails with the same error and records it
    lines = []
    for partition, selector in asked.of(states).items():
        is_offset = isinstance(selector, AtOffset)
        offset = selector.offset if isinstance(selector, AtOffset) else 0
        answer = answer_partition(name.topic, config, states, partition, offset)
        if answer.error is ErrorCode.NONE:
            # Only the job can resolve a time or a consumer group to an offset.
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


# The largest difference between the clocks of Airflow and of Spark's driver.
CLOCK_SLACK = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Identity and `now` of a task's attempt. All tasks of a DAG run have the same `now`."""

    run_id: str
    dag: str
    task: str
    now: datetime
    is_retry: bool
    since: datetime  # no attempt of the DAG run started earlier

    @property
    def now_ms(self) -> int:
        """`now` in milliseconds since the epoch."""
        return int(self.now.timestamp() * 1000)

    def options(self) -> list[str]:
        """Return the arguments that every job takes."""
        return ["--now", self.now.isoformat(timespec="milliseconds"), *self.identity()]

    def identity(self) -> list[str]:
        """Return the arguments that identify the run and task.

        They include no --now: a job that executes a plan takes `now` from the plan.
        """
        return ["--run-id", self.run_id, "--dag", self.dag, "--task", self.task]


def attempt_of(context: Context) -> TaskAttempt:
    """Return the attempt of Airflow's current task."""
    ti, dag_run = context["ti"], context["dag_run"]
    params: Mapping[str, Any] = context["params"]
    now = run_now(params, dag_run.run_after, wall_clock=datetime.now(UTC))
    first_try = ti.max_tries - (ti.task.retries or 0) + 1
    return TaskAttempt(
        run_id=dag_run.run_id,
        dag=ti.dag_id,
        task=ti.task_id,
        now=now,
        is_retry=ti.try_number > first_try,
        since=began(dag_run),
    )


def began(dag_run: Any) -> datetime:
    """Return a time before any job of the DAG run started, by the clock of any Spark driver.

    Clearing a run changes its start date, but not its `run_after`.
    """
    known: list[datetime | None] = [dag_run.run_after, getattr(dag_run, "start_date", None)]
    return min(time for time in known if time is not None) - CLOCK_SLACK


def run_now(params: Mapping[str, Any], run_after: datetime, *, wall_clock: datetime) -> datetime:
    """Return the Param `now`, or else `run_after`, in UTC.

    Raise RequestError if it is later than the machine clock: jobs would remove records too early.
    """
    given = params.get("now")
    now = _parsed(given) if given else run_after
    if now > wall_clock and not params.get("allow_future_now"):
        raise RequestError(
            f"expected `now` at or before the machine clock, {wall_clock:%Y-%m-%dT%H:%M:%SZ}, "
            f"found {now.isoformat(timespec='seconds')}. Leave `now` empty or choose an earlier "
            "time"
        )
    return now.astimezone(UTC)


def _parsed(text: str) -> datetime:
    try:
        now = datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestError(f"expected `now` as ISO 8601, found {text!r}") from error
    if now.tzinfo is None:
        raise RequestError(f"expected `now` with a time zone, found {text!r}")
    return now
