"""The Airflow pool whose slots are the Spark applications that may run at a time.

`python -m ebbtide.orchestration.pool` makes it at set-up, and a scheduler that starts without it
makes it too: the tasks of a pool that does not exist would wait for ever. One that exists stays as
it is, with the slots somebody gave it in Airflow's UI.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from airflow.listeners import hookimpl

from ebbtide.errors import ConfigurationError

SPARK_POOL = "ebbtide_spark"
SLOTS = "EBBTIDE_SPARK_SLOTS"
DEFAULT_SLOTS = 1
DESCRIPTION = "One slot for each Spark application of ebbtide that may run at a time."


def main() -> None:
    """Make the pool if it is missing, and say what there is."""
    print(f"pool {SPARK_POOL}: {make_pool()} Spark applications at a time")


def make_pool() -> int:
    """Make the pool if it is missing; the slots that it has."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        pool = Pool.get_pool(SPARK_POOL, session=session)
        if pool is None:
            pool = Pool.create_or_update_pool(
                SPARK_POOL, slots(), DESCRIPTION, include_deferred=False, session=session
            )
        return int(pool.slots)


def pool_slots() -> int | None:
    """Return the slots that the pool has; None where it is missing."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        pool = Pool.get_pool(SPARK_POOL, session=session)
        return None if pool is None else int(pool.slots)


def slots() -> int:
    """Return EBBTIDE_SPARK_SLOTS, a number of at least 1."""
    text = os.environ.get(SLOTS) or str(DEFAULT_SLOTS)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"expected a number of at least 1 in {SLOTS}, found {text!r}")
    return int(text)


class PoolListener:
    """Makes the pool when a scheduler starts, or another of Airflow's components."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Create the pool; Airflow calls this before `component` knows which component it is.

        Airflow calls it in the process of each task too, which may not use the database.
        """
        from airflow.sdk.execution_time.task_runner import TaskRunnerMarker
        from sqlalchemy.exc import IntegrityError

        if isinstance(component, TaskRunnerMarker):
            return

        with suppress(IntegrityError):  # another component, starting too, was faster
            make_pool()


if __name__ == "__main__":
    main()
