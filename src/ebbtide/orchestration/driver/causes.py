"""Tell why a task failed in one line: in its log, in its error, and handed on to verdict."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from ebbtide.errors import EbbtideError
from ebbtide.text import one_line

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

CAUSE = "ebbtide_cause"  # the key of the XCom


@contextmanager
def explained(context: Context) -> Iterator[None]:
    """Log why the block failed; an error that no retry can help fails the task at once."""
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
    """Return the causes that the tasks before this one handed on, by task."""
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
