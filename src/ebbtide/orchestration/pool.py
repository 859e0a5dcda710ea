"""The Airflow pool that limits the number of Spark applications at a time.

`python -m ebbtide.orchestration.pool` creates it at set-up. A scheduler that starts without the
pool creates it too, because tasks of a missing pool wait for ever. An existing pool is not changed:
an administrator may have set its slots in Airflow's UI.
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
DESCRIPTION = "Each slot allows one Spark application of ebbtide at a time."


def main() -> None:
    """Create the pool if it is missing, and print its slots."""
    print(f"pool {SPARK_POOL}: {make_pool()} Spark applications at a time")


def make_pool() -> int:
    """Create the pool if it is missing, and return its slots."""
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
    """Return the pool's slots, or None if it is missing."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        pool = Pool.get_pool(SPARK_POOL, session=session)
        return None if pool is None else int(pool.slots)


def slots() -> int:
    """Return EBBTIDE_SPARK_SLOTS. Raise ConfigurationError unless it is a number above 0."""
    text = os.environ.get(SLOTS) or str(DEFAULT_SLOTS)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"expected a number of at least 1 in {SLOTS}, found {text!r}")
    return int(text)


class PoolListener:
    """Creates the pool when a component of Airflow starts."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Create the pool in any component but a task: tasks may not use Airflow's database.

        Airflow calls this before `component` knows its own type.
        """
        from airflow.sdk.execution_time.task_runner import TaskRunnerMarker
        from sqlalchemy.exc import IntegrityError

        if isinstance(component, TaskRunnerMarker):
            return

        with suppress(IntegrityError):  # another starting component was faster
            make_pool()


if __name__ == "__main__":
    main()
