"""Calls of Airflow's own API within the API server, with the rights of the current user.

This way Airflow checks each right, writes its audit log, and records who triggered a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, Request

from ebbtide.orchestration.pages import AIRFLOW_APP

MAX_QUESTIONS = 20
LOGIN_SECONDS = 60  # lifetime of the token of one call
_SCHEMA = "\n\nFailed validating"  # jsonschema prints the schema from here on
# Nothing is sent over a network: the application answers in this process.
_ADDRESS = "http://airflow"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the API: the HTTP status, and the JSON as Python values."""

    status: int
    value: Any

    @property
    def is_good(self) -> bool:
        """True if the call succeeded."""
        return 200 <= self.status < 300

    @property
    def problem(self) -> str:
        """Why the call failed, in Airflow's own words."""
        detail = self.value.get("detail") if isinstance(self.value, dict) else None
        if isinstance(detail, list):  # the request does not match its schema
            return "; ".join(str(error.get("msg", error)) for error in detail)
        if isinstance(detail, dict):  # Airflow's database failed
            reason, more = detail.get("reason", "an error"), detail.get("message", "")
            return f"Airflow answered {self.status}: {reason}. Try again. {more}".strip()
        if isinstance(detail, str):
            return detail.partition(_SCHEMA)[0]
        return str(detail or f"Airflow answered {self.status}")


class AirflowApi:
    """Airflow's public API for one user."""

    def __init__(self, request: Request, user: GetUserDep) -> None:
        self._app = request.scope[AIRFLOW_APP]
        self._user = user

    @property
    def user_name(self) -> str:
        """The name under which Airflow records the user's actions."""
        return str(self._user.get_name())

    def may_trigger(self, dag: str) -> bool:
        """Return whether the user may start runs of a DAG."""
        return self._may("POST", DagAccessEntity.RUN, dag)

    def may_answer(self, dag: str) -> bool:
        """Return whether the user may answer questions of a DAG's runs."""
        return self._may("PUT", DagAccessEntity.HITL_DETAIL, dag)

    def _may(self, method: ResourceMethod, entity: DagAccessEntity, dag: str) -> bool:
        details = DagDetails(id=dag, team_name=DagModel.get_team_name(dag))
        return bool(
            get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=details, user=self._user
            )
        )

    async def open_questions(self) -> Reply:
        """Return the open questions of all runs that the user may see, newest first."""
        path = ("dags", "~", "dagRuns", "~", "hitlDetails")
        order = {"limit": MAX_QUESTIONS, "order_by": "-created_at"}
        return await self.get(*path, response_received="false", state="awaiting_input", **order)

    async def get(self, *path: str, **query: Any) -> Reply:
        """Call GET on a path below /api/v2."""
        return await self._ask("GET", path, query=query)

    async def post(self, *path: str, body: Mapping[str, Any]) -> Reply:
        """Call POST on a path below /api/v2."""
        return await self._ask("POST", path, body)

    async def patch(self, *path: str, body: Mapping[str, Any]) -> Reply:
        """Call PATCH on a path below /api/v2."""
        return await self._ask("PATCH", path, body)

    async def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Call the API without blocking a thread: Airflow answers in threads of the same pool."""
        token = get_auth_manager().generate_jwt(
            self._user, expiration_time_in_seconds=LOGIN_SECONDS
        )
        # With a Referer, Airflow records a run as started in its UI.
        headers = {"Authorization": f"Bearer {token}", "Referer": f"{_ADDRESS}/ebbtide/"}
        address = "/".join([f"{_ADDRESS}/api/v2", *(quote(part, safe="~") for part in path)])
        transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, headers=headers) as client:
            answer = await client.request(method, address, json=body, params=query)
        try:
            return Reply(answer.status_code, answer.json())
        except ValueError:
            return Reply(answer.status_code, answer.text)


Api = Annotated[AirflowApi, Depends(AirflowApi)]
