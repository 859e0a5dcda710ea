"""The states of other tasks of a DAG run."""

from __future__ import annotations

from typing import Any


def states_of(context: Any, task_id: str) -> dict[str, str]:
    """Return the state of a task by its name, of a mapped one by the names of all of them."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[task_id], run_ids=[ti.run_id])
    return {name: str(state) for name, state in sorted(states.get(ti.run_id, {}).items())}
