"""A Spark standalone cluster: a master and two workers of one core each."""

from __future__ import annotations

import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.services.process import Server, free_port

SPARK_CLASS = Path(sys.executable).parent / "spark-class"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster:
    """The cluster between `start` and `stop`."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        port, web_port = free_port(), free_port()
        self.uri = f"spark://127.0.0.1:{port}"
        at = ("--host", "127.0.0.1", "--webui-port")
        options = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        self.master = Server(
            "Spark's master",
            [str(SPARK_CLASS), MASTER, *at, str(web_port), "--port", str(port)],
            web_port,
            directory / "master.log",
            options,
        )
        self.workers = []
        for number in range(workers):
            own = free_port()
            work = directory / f"worker-{number}"
            command = [str(SPARK_CLASS), WORKER, *at, str(own), "--cores", "1", "--memory", "1g"]
            command += ["--work-dir", str(work), self.uri]
            self.workers.append(
                Server(
                    f"Spark's worker {number}", command, own, directory / f"w{number}.log", options
                )
            )
        self._running = ExitStack()

    def __enter__(self) -> SparkCluster:
        for server in (self.master, *self.workers):
            self._running.enter_context(server)
        self.master._wait_until(self._has_workers, 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _has_workers(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.master.port}/json/") as answer:
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
