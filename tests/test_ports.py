"""Ports of tests are of nobody else."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests import ports


def test_a_port_is_given_once_and_never_to_another_process() -> None:
    ours = {ports.free_port() for _ in range(200)}
    assert len(ours) == 200
    script = (
        "from tests import ports\n"
        f"print(any(ports._is_ours(port) for port in {sorted(ours)}), ports.free_port())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    taken, port = done.stdout.split()
    assert (taken, int(port) in ours) == ("False", False)


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((ports.LOOPBACK, ports.free_port())) as server:
        assert not ports._is_free(*server.getsockname())
