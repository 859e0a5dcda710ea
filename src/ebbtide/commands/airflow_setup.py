"""Checks of Airflow: its database, the pool of Spark applications, the connection to Spark."""

from __future__ import annotations

from ebbtide.commands.checks import Checks, ProblemError, by_setup
from ebbtide.errors import ConfigurationError
from ebbtide.orchestration.driver import DEFAULT, check_spark_connection, in_database
from ebbtide.orchestration.pool import SPARK_POOL, pool_slots

CHECKS = Checks()


@CHECKS.add(
    "connection",
    f"the connection {DEFAULT} of type spark with a host",
    "see docs/deploy.md, Catalog and Spark",
)
def _connection() -> str:
    try:
        return check_spark_connection(DEFAULT, in_database)
    except ConfigurationError as error:  # the check itself prints what was expected
        raise ProblemError(str(error).partition(", found ")[2]) from error


@CHECKS.add(
    "pool",
    f"the pool {SPARK_POOL} with at least one slot",
    by_setup("python -m ebbtide.orchestration.pool"),
)
def _pool() -> str:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        slots = pool_slots()
    except SQLAlchemyError as error:  # its own text has the statement and a link to SQLAlchemy
        why = getattr(error, "orig", None) or type(error).__name__
        raise ProblemError(f"no answer from Airflow's database: {why}") from error
    if slots is None:
        raise ProblemError("no such pool")
    if slots == 0:
        raise ProblemError("no slot: all Spark tasks wait")
    return f"{slots} slots"
