"""One attempt of a task: which run it belongs to and what time it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ebbtide.errors import RequestError

if TYPE_CHECKING:
    from airflow.sdk import Context

# How far the clocks of Airflow and of Spark's driver may be apart.
CLOCK_SLACK = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Identity and clock of one attempt; `now` is the same for every task of a DAG run."""

    run_id: str
    dag: str
    task: str
    now: datetime
    is_retry: bool
    since: datetime  # no attempt of the DAG run started before

    @property
    def now_ms(self) -> int:
        """`now` in milliseconds since the epoch, as Kafka keeps times."""
        return int(self.now.timestamp() * 1000)

    def options(self) -> list[str]:
        """Return the arguments every job takes."""
        return ["--now", self.now.isoformat(timespec="milliseconds"), *self.identity()]

    def identity(self) -> list[str]:
        """Return those that say who runs a job; a job that executes a plan has its clock."""
        return ["--run-id", self.run_id, "--dag", self.dag, "--task", self.task]


def attempt_of(context: Context) -> TaskAttempt:
    """Return the attempt that Airflow's context describes."""
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
    """Return a time before any job of the DAG run started, by whatever clock Spark's driver has.

    Clearing a run sets its start anew, but not when it was due.
    """
    known: list[datetime | None] = [dag_run.run_after, getattr(dag_run, "start_date", None)]
    return min(time for time in known if time is not None) - CLOCK_SLACK


def run_now(params: Mapping[str, Any], run_after: datetime, *, wall_clock: datetime) -> datetime:
    """Return the Param `now`, else `run_after`, in UTC and never later than the wall clock.

    Acting early would remove what its owner was promised to keep until then.
    """
    given = params.get("now")
    now = _parsed(given) if given else run_after
    if now > wall_clock and not params.get("allow_future_now"):
        raise RequestError(
            f"expected a now at or before the wall clock, {wall_clock:%Y-%m-%dT%H:%M:%SZ}, found "
            f"{now.isoformat(timespec='seconds')}: leave `now` empty or choose an earlier time"
        )
    return now.astimezone(UTC)


def _parsed(text: str) -> datetime:
    try:
        now = datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestError(f"expected `now` as ISO 8601, found {text!r}") from error
    if now.tzinfo is None:
        raise RequestError(f"expected a `now` with a time zone, found {text!r}")
    return now
