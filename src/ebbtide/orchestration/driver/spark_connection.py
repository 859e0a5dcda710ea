"""The Airflow connection that names Spark's master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from ebbtide.errors import ConfigurationError

DEFAULT = "spark_default"


def check_spark_connection(
    name: str = DEFAULT, look_up: Callable[[str], Any] = BaseHook.get_connection
) -> str:
    """Return the connection's master; ConfigurationError where Airflow would turn it into YARN.

    Airflow's own look-up works in its tasks; another process needs `in_database`.
    """
    try:
        connection = look_up(name)
    except AirflowNotFoundException:
        connection = None
    if connection is None or connection.conn_type != "spark" or not connection.host:
        raise ConfigurationError(
            f"expected connection {name} of type spark with a host, found "
            f"{'none' if connection is None else repr(connection.conn_type or '')}; set "
            f"AIRFLOW_CONN_{name.upper()}='"
            '{"conn_type":"spark","host":"local[2]"}\' (a URI cannot hold local[2])'
        )
    return str(connection.host)


def in_database(name: str) -> Any:
    """Look a connection up in the environment, a secrets backend, or Airflow's database."""
    from airflow.models.connection import Connection

    return Connection.get_connection_from_secrets(name)
