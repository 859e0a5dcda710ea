"""Run Airflow on loopback: four components as children of one process, which also ends them.

`airflow standalone` is not used: its log servers listen on every address, and it leaves its
children running when it is stopped.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ebbtide.numbers import whole_argument
from ebbtide.orchestration.driver_inputs import paths

LOOPBACK = "127.0.0.1"
COMPONENTS = {
    "api-server": ["airflow", "api-server"],
    "scheduler": ["airflow", "scheduler", "-s"],
    "dag-processor": ["airflow", "dag-processor"],
    "triggerer": ["airflow", "triggerer", "-s"],
}
PATIENCE_SECONDS = 120
GRACE_SECONDS = 20
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PASSWORDS = "simple_auth_manager_passwords.json.generated"


@dataclass(slots=True)
class Children:
    """The components, each in a process group of its own, so that its children end with it."""

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    is_ending: bool = False

    def start(self, environment: Mapping[str, str]) -> None:
        """Start every component, each with its own output file."""
        for name, command in COMPONENTS.items():
            with (self.logs / f"{name}.log").open("wb") as log:
                self.running[name] = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def ended(self) -> str | None:
        """Return the name of a component that has ended, or None."""
        return next((n for n, child in self.running.items() if child.poll() is not None), None)

    def ask_to_end(self, *_: int | FrameType | None) -> None:
        """Record a signal; the loop in `watch` then ends."""
        self.is_ending = True

    def end(self) -> None:
        """Terminate all started processes, wait for them, and kill those that do not end."""
        told: set[int] = set()
        deadline = time.monotonic() + GRACE_SECONDS
        while has_children() and time.monotonic() < deadline:
            for pid in set(children_left()) - told:
                send(pid, signal.SIGTERM)
                told.add(pid)
            time.sleep(0.1)
        while has_children():
            for pid in children_left():
                send(pid, signal.SIGKILL)
            time.sleep(0.1)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 1 if a component ends by itself or the port is taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=whole_argument(most=65_535), default=8080)
    port = parser.parse_args(argv).port
    if is_busy(port):
        print(f"up: port {port} is taken. Choose another: make up PORT=8090", file=sys.stderr)
        return 1
    children = Children(paths().logs)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, children.ask_to_end)
    print("up: starting Airflow, about half a minute", flush=True)
    adopt_orphans()
    close_to_others(Path(os.environ["AIRFLOW_HOME"]))
    children.start(environment(port))
    try:
        return watch(children, port)
    finally:
        print("up: stopping", flush=True)
        children.end()


def close_to_others(home: Path) -> None:
    """Let only the owner read AIRFLOW_HOME: Airflow makes its database and passwords readable."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for name in ("airflow.db", "airflow.cfg", PASSWORDS):
        if (home / name).exists():
            (home / name).chmod(0o600)


def watch(children: Children, port: int) -> int:
    """Print Airflow's address once it answers, then wait for a signal or the end of a component."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    is_announced = False
    while not children.is_ending:
        if name := children.ended():
            print(f"up: {name} ended, see {children.logs / name}.log", file=sys.stderr)
            return 1
        if not is_announced and answers(port):
            announce(port)
            is_announced = True
        elif not is_announced and time.monotonic() > deadline:
            print(f"up: no answer on port {port}, see {children.logs}", file=sys.stderr)
            return 1
        time.sleep(0.5)
    return 0


def environment(port: int) -> dict[str, str]:
    """Return the components' environment; with a shared secret they accept each other's tokens."""
    url = f"http://{LOOPBACK}:{port}"
    return {
        **os.environ,
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(32),
    }


def announce(port: int) -> None:
    """Print the address and the login."""
    file = Path(os.environ["AIRFLOW_HOME"]) / PASSWORDS
    logins = json.loads(file.read_text()) if file.exists() else {}
    for user, password in logins.items():
        print(f"up: http://{LOOPBACK}:{port}  user {user}  password {password}", flush=True)
    print("up: Ctrl-C stops everything", flush=True)


def is_busy(port: int) -> bool:
    """Return whether a process already listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def answers(port: int) -> bool:
    """Return whether the api-server answers."""
    try:
        url = f"http://{LOOPBACK}:{port}/api/v2/version"
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process, and its group if it leads one; it may have ended."""
    for how in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            how(pid, number)


def adopt_orphans() -> None:
    """Become the parent of processes that components leave behind, to end them too (Linux).

    Airflow runs each task in a session of its own, which no signal to the scheduler's group
    reaches.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_left() -> list[int]:
    """Return the pids of all children, adopted ones included; more may be adopted when one ends."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def has_children() -> bool:
    """Return whether a child is left, after the ended ones are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
