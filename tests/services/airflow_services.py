"""Airflow's four components as processes of their own, PostgreSQL behind them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

from ebbtide.lake.catalog_settings import read_defaults
from ebbtide.local.serve import COMPONENTS, environment
from tests.lake_sandbox import RENDER, ROOT, LakeSandbox
from tests.ports import free_port
from tests.services.airflow_api import AirflowApi
from tests.services.postgresql import PASSWORD, USER, PostgreSql
from tests.services.process import Server

LOGIN = ("admin", "tests-login")
DAGS = len(list((ROOT / "dags").glob("*.py")))
# After a crash Airflow waits so long before it takes a task for dead: minutes, if not set.
SOON = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
}


class Component(Server):
    """One that listens on no port."""

    def answers(self) -> bool:
        """It is taken to run."""
        return True


class Airflow:
    """An Airflow for one lake between `start` and `stop`, configured as `make up` does."""

    def __init__(
        self, lake: LakeSandbox, database: PostgreSql, settings: Mapping[str, str]
    ) -> None:
        self.home = lake.home / "airflow"
        self.environment = {
            **_as_make_up_has_it(lake),
            **_connections(lake, database),
            **SOON,
            **settings,
        }
        port, health_port = free_port(), free_port()
        self.environment |= {
            name: value
            for name, value in environment(port).items()
            if name.startswith("AIRFLOW__API") or name == "AIRFLOW__CORE__EXECUTION_API_SERVER_URL"
        }
        self.environment["AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK"] = "True"
        self.environment["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT"] = str(
            health_port
        )
        self.port = port
        ports = {"api-server": port, "scheduler": health_port}
        self.components = {
            name: (Server if name in ports else Component)(
                name, command, ports.get(name, 0), lake.home / f"{name}.log", self.environment
            )
            for name, command in COMPONENTS.items()
        }
        self._running = ExitStack()

    def __enter__(self) -> Airflow:
        self.home.mkdir(parents=True)
        logins = self.home / "logins.json"
        logins.write_text(json.dumps(dict([LOGIN])))
        for command in (
            ["airflow", "db", "migrate"],
            ["python", "-m", "ebbtide.orchestration.pool"],
        ):
            subprocess.run(command, env=self.environment, check=True, capture_output=True)
        with ExitStack() as started:
            started.callback(self._end_tasks)
            for component in self.components.values():
                started.enter_context(component)
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://127.0.0.1:{self.port}"

    def api(self) -> AirflowApi:
        """Its API, when it knows all DAGs."""
        opened = AirflowApi(self.url, *LOGIN)
        opened.wait_for_dags(DAGS)
        return opened

    def kill_scheduler(self) -> None:
        """With its executor's processes, and whatever their tasks have started; then start it."""
        self.components["scheduler"].kill()
        self._end_tasks()
        self.components["scheduler"].start()

    def _end_tasks(self) -> None:
        """Airflow runs each task in a session of its own, which ends with nobody."""
        components = {server.pid for server in self.components.values() if server.is_running}
        for pid in _processes_with("AIRFLOW_HOME", str(self.home)):
            with suppress(ProcessLookupError):
                if os.getsid(pid) not in components:
                    os.kill(pid, signal.SIGKILL)


def _as_make_up_has_it(lake: LakeSandbox) -> dict[str, str]:
    """The environment that conf/airflow.env makes for a lake."""
    lake.package()
    file = lake.home / "conf" / "airflow.env"
    template = (ROOT / "conf" / "airflow.env").read_text()
    RENDER["write_private"](file, RENDER["render"](template, lake.environment()))
    process = subprocess.run(
        ["bash", "-c", 'set -a; . "$0"; env --null', str(file)],
        check=True,
        capture_output=True,
        text=True,
    )
    pairs = (line.partition("=") for line in process.stdout.split("\0") if line)
    return {name: value for name, _, value in pairs}


def _connections(lake: LakeSandbox, database: PostgreSql) -> dict[str, str]:
    """Airflow's own database, its login, and the Spark of the lake."""
    name = f"airflow_{secrets.token_hex(4)}"
    database.create(name)
    defaults = read_defaults(lake.home / "conf" / "spark-defaults.conf")
    where = f"{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{database.port}/{name}"
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{where}",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{LOGIN[0]}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(
            lake.home / "airflow" / "logins.json"
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": defaults["spark.master"]}
        ),
    }


def _processes_with(variable: str, value: str) -> Iterator[int]:
    """The processes whose environment says so."""
    wanted = f"{variable}={value}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                yield int(directory.name)
