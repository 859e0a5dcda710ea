"""Who may approve plans, how long they may take, and where a plan's page is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pendulum
from airflow.sdk.configuration import conf

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.log.plans.plan import Plan

if TYPE_CHECKING:
    from airflow.sdk.execution_time.hitl import HITLUser

APPROVERS = "EBBTIDE_APPROVERS"
TIMEOUT = "EBBTIDE_APPROVAL_TIMEOUT"


def approvers() -> list[HITLUser] | None:
    """Return the users who may answer; None means all who may trigger the DAG."""
    names = [name.strip() for name in os.environ.get(APPROVERS, "").split(",")]
    return [{"id": name, "name": name} for name in names if name] or None


def answer_by(plans: Iterable[Plan], clock: datetime) -> datetime:
    """Return until when an answer counts: until the first plan expires, or a setting's time."""
    first = min(plans, key=lambda plan: plan.expires_at)
    if first.expires_at <= clock:
        raise RequestError(
            f"expected plans that have not expired, found {first.plan_id}, which expired at "
            f"{first.expires_at:%Y-%m-%d %H:%M} UTC; make a new plan"
        )
    timeout = _timeout()
    return first.expires_at if timeout is None else min(first.expires_at, clock + timeout)


def _timeout() -> timedelta | None:
    text = os.environ.get(TIMEOUT)
    if not text:
        return None
    try:
        timeout = pendulum.parse(text)
    except ValueError:
        timeout = None
    if not isinstance(timeout, pendulum.Duration) or timeout <= timedelta():
        raise ConfigurationError(
            f"expected an ISO 8601 duration above zero, such as PT8H, in {TIMEOUT}, found {text!r}"
        )
    return timeout.as_timedelta()


def page_of(plan_id: str) -> str:
    """Return the path of a plan's page, below the path that Airflow is served at."""
    root = urlparse(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{root}/ebbtide/plans/{plan_id}"
