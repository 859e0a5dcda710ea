"""The note of a DAG run, which Airflow shows in its list of runs: its failures, or a decision.

A task cannot set it: Airflow's task API has no call for it. So `report_run` hands the lines on as
an XCom, and a listener writes the note in the session of the component that ends the run, usually
the scheduler. The listener neither commits nor opens a session: a second session would wait for
ever for the scheduler's lock on the run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from ebbtide.orchestration.driver import CAUSE

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

log = logging.getLogger(__name__)

# Keys of report_run's XComs: the note's lines if the run fails, and if it succeeds.
FAILURES = "ebbtide_failures"
DECISION = "ebbtide_decision"
AUTHOR = "ebbtide"  # as the note's user
LONGEST_NOTE = 1000  # characters; the width of Airflow's column
# Airflow shows a note as Markdown. Only characters that make links, pictures and HTML are escaped,
# because users also read notes through the API.
_LINKING = re.compile(r"([\\\[\]<`])")
_ESCAPED = re.compile(r"\\([\\\[\]<`])")


class NoteListener:
    """Writes the note when a run ends. A run that succeeds loses its note of a failure.

    A note by a user is not changed. Errors are only logged.
    """

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun, msg: str) -> None:
        """Write the failures. Airflow calls this for every DAG, but only ebbtide's hand some on."""
        try:
            with _in_session(dag_run) as run:
                if not _is_of_another(run) and (failures := failures_of(run)):
                    _write(run, note_of(failures))
        except Exception:
            log.exception("ebbtide: the note of run %s was not written", dag_run.run_id)

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun, msg: str) -> None:
        """Write the decision about the run's plans, or remove the note of an earlier failure."""
        try:
            with _in_session(dag_run) as run:
                if _is_of_another(run):
                    return
                if decision := lines_of(run, DECISION):
                    _write(run, note_of(decision))
                else:
                    run.dag_run_note = None
        except Exception:
            log.exception("ebbtide: the note of run %s was not written", dag_run.run_id)


@contextmanager
def _in_session(dag_run: DagRun) -> Iterator[DagRun]:
    """Yield the run in a session. `airflow dags test` passes a run without one."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy.orm import object_session

    if object_session(dag_run) is not None:
        yield dag_run
        return
    with create_session() as session:
        yield session.get_one(DagRun, dag_run.id)


def failures_of(dag_run: DagRun) -> list[str]:
    """Return the failures that report_run handed on, or else the causes of single tasks."""
    causes = [f"{row.task_id} failed: {row.value}" for row in _handed_on(dag_run, CAUSE)]
    return lines_of(dag_run, FAILURES) or causes


def lines_of(dag_run: DagRun, key: str) -> list[str]:
    """Return the lines that report_run handed on under this key."""
    return [line for row in _handed_on(dag_run, key) for line in row.value]


def _handed_on(dag_run: DagRun, key: str) -> Sequence[Any]:
    """Return the run's XComs of a key, oldest first."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    assert session is not None
    handed_on = (
        select(XComModel.task_id, XComModel.value)
        .where(XComModel.dag_run_id == dag_run.id, XComModel.key == key)
        .order_by(XComModel.timestamp)
    )
    with session.no_autoflush:
        rows: Sequence[Any] = session.execute(handed_on).all()
    return rows


def note_of(failures: Sequence[str]) -> str:
    """Join the first failure and all further whole lines that fit, without links."""
    failures = [without_links(failure) for failure in failures]
    note = _cut(failures[0])
    for number, failure in enumerate(failures[1:], start=1):
        rest = f"\n({len(failures) - number} more in the log of report_run)"
        is_last = number == len(failures) - 1
        if len(note) + 1 + len(failure) + (0 if is_last else len(rest)) > LONGEST_NOTE:
            return _cut(note, LONGEST_NOTE - len(rest)) + rest
        note += f"\n{failure}"
    return note


def without_links(text: str) -> str:
    """Escape the text, so that Markdown makes no link, picture or HTML of it.

    It can contain untrusted words: a user's answer, a file's name, or a setting's value.
    """
    return _LINKING.sub(r"\\\1", text)


def as_written(note: str) -> str:
    """Return a note's text without the escapes of `without_links`."""
    return _ESCAPED.sub(r"\1", note)


def _cut(line: str, length: int = LONGEST_NOTE) -> str:
    return line if len(line) <= length else line[: length - 1] + "…"


def _is_of_another(dag_run: DagRun) -> bool:
    return dag_run.dag_run_note is not None and dag_run.dag_run_note.user_id != AUTHOR


def _write(dag_run: DagRun, note: str) -> None:
    from airflow.models.dagrun import DagRunNote

    if dag_run.dag_run_note is None:
        dag_run.dag_run_note = DagRunNote(note, AUTHOR)  # type: ignore[no-untyped-call]
    else:
        dag_run.dag_run_note.content = note
