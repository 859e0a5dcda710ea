"""Airflow's public API, as somebody with a login uses it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from ebbtide.orchestration.approval import SHOWN
from ebbtide.orchestration.pages.run import SETTLING
from tests.waiting import wait_until

ENDED = {"success", "failed"}
OVER = {*ENDED, "skipped", "upstream_failed"}  # of a task


class AirflowApi:
    """One login at one api-server."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        login = {"username": user, "password": password}
        self.token = self._ask("POST", "/auth/token", login)["access_token"]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return json.loads(self.read(method, path, body))

    def read(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """The text of an answer; AssertionError with it where the status is an error's."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if hasattr(self, "token"):
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from error

    def wait_for_dags(self, count: int) -> None:
        """Until the dag-processor has read them all, without an error."""

        def are_there() -> bool:
            errors = self._ask("GET", "/api/v2/importErrors")["import_errors"]
            assert not errors, errors
            return bool(self._ask("GET", "/api/v2/dags")["total_entries"] >= count)

        wait_until(are_there, f"{count} DAGs", pause_s=2)

    def trigger(self, dag: str, conf: Mapping[str, Any]) -> str:
        """Unpause a DAG and start a run of it; the run's id."""
        self._ask("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
        body = {"logical_date": None, "conf": conf}
        run_id: str = self._ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"]
        return run_id

    def wait_for_a_run(self, dag: str, others: Collection[str]) -> str:
        """Wait until a DAG has a run beside these; its id."""
        new = wait_until(
            lambda: [run_id for run_id in self.runs(dag) if run_id not in others],
            f"a new run of {dag}",
            pause_s=1,
        )
        return new[0]

    def runs(self, dag: str) -> list[str]:
        """The ids of a DAG's runs."""
        runs = self._ask("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return [run["dag_run_id"] for run in runs]

    def must_succeed(self, dag: str, conf: Mapping[str, Any]) -> str:
        """Trigger a DAG and wait; the run's id when it has succeeded."""
        run_id = self.trigger(dag, conf)
        state = self.wait(dag, run_id)
        assert state == "success", f"{dag} {run_id}: {self.states(dag, run_id)}"
        return run_id

    def wait_until(self, state: str, dag: str, run_id: str, task: str) -> None:
        """Until the task is in a state; AssertionError if it was over before."""

        def is_in_it() -> bool:
            now = self.states(dag, run_id).get(task, [])
            if state in now:
                return True
            assert not OVER & set(now), f"{task} was over before it was seen {state}: {now}"
            return False

        wait_until(is_in_it, f"{task} of {dag} to be {state}", pause_s=1)

    def approve(self, dag: str, run_id: str, note: str) -> str:
        """Answer a run that must ask; the question."""
        question = self.approve_if_asked(dag, run_id, note)
        assert question is not None, self.states(dag, run_id)
        return question

    def approve_if_asked(self, dag: str, run_id: str, note: str) -> str | None:
        """Answer a run if it asks, which it does where something would be removed; the question.

        It answers once Airflow's scheduler knows that the task waits, as ebbtide's pages do.
        """
        asks = OVER | {"awaiting_input"}
        now = wait_until(
            lambda: asks & set(self.states(dag, run_id).get("approve", [])),
            f"{dag} to ask for an approval, or to need none",
            pause_s=1,
        )
        if "awaiting_input" not in now:
            return None
        wait_until(lambda: self._is_settled(dag, run_id), "Airflow's scheduler to go on", pause_s=1)
        return self._answer(dag, run_id, note)

    def _is_settled(self, dag: str, run_id: str) -> bool:
        detail = self._ask("GET", f"{self._approval(dag, run_id)}/hitlDetails")
        health = self._ask("GET", "/api/v2/monitor/health")
        heartbeat = health["scheduler"]["latest_scheduler_heartbeat"]
        asked_at = datetime.fromisoformat(detail["created_at"])
        return datetime.fromisoformat(heartbeat) >= asked_at + SETTLING

    def _approval(self, dag: str, run_id: str) -> str:
        return f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/approve/-1"

    def _answer(self, dag: str, run_id: str, note: str) -> str:
        path = f"{self._approval(dag, run_id)}/hitlDetails"
        question = self._ask("GET", path)
        fields = {"note": note, SHOWN: question["params"][SHOWN]["value"]}
        self._ask("PATCH", path, {"chosen_options": ["Approve"], "params_input": fields})
        body: str = question["body"]
        return body

    def wait(self, dag: str, run_id: str) -> str:
        """The run's state when it has ended."""

        def ended() -> str:
            state: str = self._ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}")["state"]
            return state if state in ENDED else ""

        return wait_until(ended, f"{dag} {run_id} to end", pause_s=2)

    def note(self, dag: str, run_id: str) -> str | None:
        """What Airflow shows beside a run."""
        note: str | None = self._ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}")["note"]
        return note

    def states(self, dag: str, run_id: str) -> dict[str, list[str]]:
        """The states of a run's tasks, by task."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances"
        by_state: dict[str, list[str]] = {}
        for task in self._ask("GET", path)["task_instances"]:
            by_state.setdefault(task["task_id"], []).append(task["state"])
        return by_state

    def log(self, dag: str, run_id: str, task: str, attempt: int = 1) -> str:
        """A task's log."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/logs/{attempt}"
        lines = self._ask("GET", f"{path}?full_content=true")["content"]
        return "\n".join(line if isinstance(line, str) else line["event"] for line in lines)
