"""Two hosts for Spark's workers that share nothing with the driver's but a network.

Each has a network of its own, a user of its own, and sees an empty directory where the driver has
its checkout. Linux: network namespaces, mount namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lake_sandbox import ROOT
from tests.services.spark_cluster import SPARK, Host

NETWORK = "10.213.87"
DRIVER = f"{NETWORK}.1"
USERS = ("nobody", "daemon")  # Hadoop refuses a user without a name


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """The hosts, on a bridge with the driver's address DRIVER; needs root."""
    assert os.geteuid() == 0, "expected root, who makes network namespaces; run as root"
    bridge = f"ebbtide{os.getpid()}"[:15]
    places = Path(tempfile.mkdtemp(prefix="ebbtide-hosts-"))
    places.chmod(0o755)
    hosts: list[Host] = []
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{DRIVER}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, user in enumerate(USERS):
            _join(bridge, number)
            hosts.append(_host(bridge, number, user, places))
        yield hosts
    finally:
        for number in range(len(USERS)):
            subprocess.run(["ip", "netns", "delete", _name(bridge, number)], capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True)
        shutil.rmtree(places)


def _name(bridge: str, number: int) -> str:
    return f"{bridge}-{number}"


def _join(bridge: str, number: int) -> None:
    """Give a network namespace of its own a cable to the bridge."""
    name, end = _name(bridge, number), f"ebb{os.getpid()}v{number}"
    within = ("ip", "-n", name)
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
    _run("ip", "link", "set", end, "master", bridge, "up")
    _run(*within, "address", "add", f"{NETWORK}.{11 + number}/24", "dev", "eth0")
    _run(*within, "link", "set", "eth0", "up")
    _run(*within, "link", "set", "lo", "up")


def _host(bridge: str, number: int, user: str, places: Path) -> Host:
    folder = places / f"host-{number}"
    spark = folder / "spark"
    spark.mkdir(parents=True)
    shutil.chown(folder, user)
    hidden = f"mount --bind {SPARK} {spark} && mount -t tmpfs none {ROOT} && cd {folder}"
    as_user = f"setpriv --reuid {user} --regid nogroup --clear-groups"
    address = f"{NETWORK}.{11 + number}"
    kept = f"PATH=/usr/bin:/bin HOME={folder} SPARK_HOME={spark} SPARK_LOCAL_IP={address}"
    clean = f"env -i {kept} SPARK_DAEMON_MEMORY=256m SPARK_NO_DAEMONIZE=1"
    enter = ("ip", "netns", "exec", _name(bridge, number), "unshare", "--mount", "sh", "-ec")
    script = f'{hidden} && exec {as_user} {clean} "$@"'
    return Host(address, DRIVER, (*enter, script, "sh"), spark, folder)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
