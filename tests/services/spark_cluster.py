"""A Spark standalone cluster: a master and two workers of one core each."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pyspark

from tests.ports import LOOPBACK, free_port
from tests.services.process import Server

SPARK_CLASS = Path(sys.executable).parent / "spark-class"
SPARK = Path(pyspark.__file__).parent
DAEMON = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
# Each application leaves 140 MB of jars with a worker, and many nights fill a disk.
CLEANUP = {
    "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=60 "
    "-Dspark.worker.cleanup.appDataTtl=60"
}


class Host(NamedTuple):
    """Where a worker runs: this machine, unless `enter` is a command that leads elsewhere."""

    address: str = LOOPBACK
    driver_address: str = LOOPBACK  # of the master and the driver, as the host reaches them
    enter: tuple[str, ...] = ()
    spark: Path = SPARK
    directory: Path | None = None  # that the worker may write to


class SparkCluster:
    """The cluster between `start` and `stop`; where and as whom a worker runs is its host's."""

    def __init__(self, directory: Path, hosts: Sequence[Host] = (Host(), Host())) -> None:
        self.hosts = hosts
        of_master = hosts[0].driver_address
        port, web_port = free_port(of_master), free_port(of_master)
        self.uri = f"spark://{of_master}:{port}"
        self.master = Server(
            "Spark's master",
            [
                *(str(SPARK_CLASS), MASTER, "--host", of_master, "--port", str(port)),
                *("--webui-port", str(web_port)),
            ],
            web_port,
            directory / "master.log",
            {**DAEMON, "SPARK_LOCAL_IP": of_master},
            of_master,
        )
        self.workers = [self._worker(number, host, directory) for number, host in enumerate(hosts)]
        self._running = ExitStack()

    def _worker(self, number: int, host: Host, directory: Path) -> Server:
        port = free_port() if host.address == LOOPBACK else 8081
        command = [str(host.spark / "bin" / "spark-class"), WORKER, "--host", host.address]
        command += ["--webui-port", str(port), "--cores", "1", "--memory", "1g"]
        command += ["--work-dir", str((host.directory or directory) / f"worker-{number}"), self.uri]
        log, name = directory / f"w{number}.log", f"Spark's worker {number}"
        options = {**DAEMON, **CLEANUP, "SPARK_LOCAL_IP": host.address}
        return Server(name, [*host.enter, *command], port, log, options, host.address)

    def __enter__(self) -> SparkCluster:
        with ExitStack() as started:  # ends those before one that does not start
            for server in (self.master, *self.workers):
                started.enter_context(server)
            self.master._wait_until(self._has_workers, 60)
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _has_workers(self) -> bool:
        with urllib.request.urlopen(
            f"http://{self.master.host}:{self.master.port}/json/"
        ) as answer:
            text = answer.read().decode()
        return f'"aliveworkers" : {len(self.workers)}' in text

    def settings(self) -> dict[str, str]:
        """What spark-defaults.conf says of it; executors do all the work that is theirs to do."""
        return {
            "spark.master": self.uri,
            "spark.executor.memory": "700m",
            "spark.cores.max": "2",
            "spark.ebbtide.driver.rows": "0",
        }
