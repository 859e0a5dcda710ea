"""The supervisor with small children in the place of Airflow's components."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.local import serve
from tests.waiting import PATIENCE_S, wait_until

# Ignores SIGTERM where told to, and leaves a grandchild in a session of its own.
CHILD = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen(["sleep", "300"], start_new_session=True)
open(f"{os.environ['PIDS']}/{os.getpid()}", "w").write(f"{os.getpid()} {grandchild.pid}")
time.sleep(300)
"""
# Ends once the other child has told its processes.
ENDS_SECOND = """
import os, pathlib, time
while not any(path.read_text() for path in pathlib.Path(os.environ["PIDS"]).iterdir()):
    time.sleep(0.1)
raise SystemExit(3)
"""
SUPERVISOR = """
import json, os, sys
from ebbtide.local import serve
children = json.loads(os.environ["KIDS"])
serve.COMPONENTS = {name: [sys.executable, "-c", *given] for name, given in children.items()}
serve.GRACE_SECONDS = 3
sys.exit(serve.main(["--port", os.environ["PORT"]]))
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


def supervise(tmp_path: Path, port: int, **children: list[str]) -> subprocess.Popen[str]:
    (tmp_path / "logs").mkdir()
    (tmp_path / "pids").mkdir()
    environment = {
        **os.environ,
        "EBBTIDE_ROOT": str(tmp_path),
        "EBBTIDE_HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path),
        "PIDS": str(tmp_path / "pids"),
        "KIDS": json.dumps(children),
        "PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started(tmp_path: Path, count: int) -> list[int]:
    """Every process that the children reported, once all have."""

    def reported() -> list[int]:
        process_ids = [path.read_text().split() for path in (tmp_path / "pids").iterdir()]
        is_complete = len(process_ids) == count and all(len(pids) == 2 for pids in process_ids)
        return [int(pid) for pids in process_ids for pid in pids] if is_complete else []

    return wait_until(reported, f"{count} children to start")


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_child_and_what_they_left(
    tmp_path: Path, port: int, number: signal.Signals
) -> None:
    supervisor = supervise(tmp_path, port, one=[CHILD], two=[CHILD, "deaf"])
    pids = started(tmp_path, 2)
    supervisor.send_signal(number)
    output, _ = supervisor.communicate(timeout=PATIENCE_S)
    assert supervisor.returncode == 0
    assert output.splitlines() == ["up: starting Airflow, about half a minute", "up: stopping"]
    assert [pid for pid in pids if is_alive(pid)] == []


def test_a_child_that_ends_by_itself_ends_everything(tmp_path: Path, port: int) -> None:
    supervisor = supervise(tmp_path, port, one=[CHILD], two=[ENDS_SECOND])
    output, _ = supervisor.communicate(timeout=PATIENCE_S)
    assert supervisor.returncode == 1
    assert f"up: two ended, see {tmp_path}/logs/two.log" in output.splitlines()
    pids = [int(p) for path in (tmp_path / "pids").iterdir() for p in path.read_text().split()]
    assert len(pids) == 2
    assert [pid for pid in pids if is_alive(pid)] == []


def test_nobody_else_reads_airflows_database_and_passwords(tmp_path: Path) -> None:
    home = tmp_path / "airflow"
    home.mkdir(mode=0o755)
    secret = [home / "airflow.db", home / "simple_auth_manager_passwords.json.generated"]
    for file in secret:
        file.touch(mode=0o644)
    serve.close_to_others(home)
    assert [path.stat().st_mode & 0o777 for path in (home, *secret)] == [0o700, 0o600, 0o600]


def test_a_busy_port_is_one_line(tmp_path: Path, port: int) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = taken.getsockname()[1]
        supervisor = supervise(tmp_path, busy, one=[CHILD])
        output, _ = supervisor.communicate(timeout=PATIENCE_S)
    assert supervisor.returncode == 1
    assert output == f"up: port {busy} is taken. Choose another: make up PORT=8090\n"
