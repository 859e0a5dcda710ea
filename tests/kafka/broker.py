"""A real Kafka broker (KRaft) from jars, on free loopback ports, and more that join it."""

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.ports import free_port
from tests.waiting import PATIENCE_S

START_SECONDS = STOP_SECONDS = PATIENCE_S
JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.logFile=System.out",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class BrokerError(Exception):
    """The broker did not start or stop; the message ends with the tail of its log."""


class KafkaBroker:
    """A broker that runs between `start` and `stop`; its directory can be started again.

    `overrides` are entries of server.properties, e.g. `**{"log.cleaner.enable": "false"}`; one
    that `joins` another is a broker alone, beside that node, which is controller too. With
    `users`, {name: password}, it wants a login and ACLs; the first is its superuser. One that is
    brief starts in half the CPU time, and is the slower for long work.
    """

    def __init__(
        self,
        jars_dir: Path,
        work_dir: Path,
        *,
        joins: "KafkaBroker | None" = None,
        users: Mapping[str, str] | None = None,
        is_brief: bool = True,
        **overrides: str,
    ) -> None:
        self.jars_dir = jars_dir.absolute()
        self.work_dir = work_dir.absolute()
        self.overrides = overrides
        self.joins = joins
        self._jvm = ("-XX:TieredStopAtLevel=1",) if is_brief else ()
        self.users = dict(users or (joins.users if joins else {}))
        self.node_id = joins.node_id + 1 if joins else 1
        self.cluster_id = joins.cluster_id if joins else random_cluster_id()
        self.log_dir = self.work_dir / "logs"
        self.bootstrap_servers = ""
        self.controller = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def output(self) -> Path:
        """Where the broker's own log goes."""
        return self.work_dir / "broker.log"

    def client(self, user: str | None = None) -> dict[str, str]:
        """librdkafka's settings for a client; without a user, the superuser's."""
        settings = {"bootstrap.servers": self.bootstrap_servers}
        if self.users:
            name = user or next(iter(self.users))
            settings |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": name,
                "sasl.password": self.users[name],
            }
        return settings

    def start(self) -> None:
        """Format the directory if it is new, start, and return once the broker answers."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        broker_port, controller_port = free_port(), free_port()
        self.bootstrap_servers = f"127.0.0.1:{broker_port}"
        self.controller = self.joins.controller if self.joins else f"127.0.0.1:{controller_port}"
        properties = self.work_dir / "server.properties"
        settings = server_settings(self) | self.overrides
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (self.log_dir / "meta.properties").exists():
            self._format(properties)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                java_command(self.jars_dir, "kafka.Kafka", str(properties), jvm=self._jvm),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_served(broker_port)
        except BaseException:
            self.stop()
            raise

    def freeze(self) -> None:
        """Let the broker answer nothing, as a machine that hangs, until `thaw` or `stop`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask the broker to shut down cleanly and wait; kill it if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerError(
                f"the broker did not stop within {STOP_SECONDS:.0f} s and was killed"
                f"{self._log_tail()}"
            ) from None

    def _format(self, properties: Path) -> None:
        arguments = ("format", "-t", self.cluster_id, "-c", str(properties))
        done = subprocess.run(
            java_command(self.jars_dir, "kafka.tools.StorageTool", *arguments, jvm=self._jvm),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise BrokerError(f"formatting {self.log_dir} failed: {done.stdout}{done.stderr}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _wait_until_served(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not accepts_connections(port):
            self._check_alive(deadline)
            time.sleep(0.1)
        admin = AdminClient(self.client())
        while True:
            self._check_alive(deadline)
            with suppress(KafkaException):
                if self.node_id in admin.list_topics(timeout=2).brokers:
                    return

    def _check_alive(self, deadline: float) -> None:
        status = self._process.poll() if self._process else None
        if status is not None:
            raise BrokerError(f"the broker ended with status {status}{self._log_tail()}")
        if time.monotonic() > deadline:
            raise BrokerError(
                f"the broker did not answer within {START_SECONDS:.0f} s{self._log_tail()}"
            )

    def _log_tail(self, lines: int = 30) -> str:
        tail = self.output.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"; the end of {self.output}:", *tail])


def server_settings(broker: KafkaBroker) -> dict[str, str]:
    """server.properties of a node, everything replicated once."""
    protocol = "SASL_PLAINTEXT" if broker.users else "PLAINTEXT"
    listeners = [f"{protocol}://{broker.bootstrap_servers}"]
    if not broker.joins:
        listeners.append(f"CONTROLLER://{broker.controller}")
    return {
        "process.roles": "broker" if broker.joins else "broker,controller",
        "node.id": str(broker.node_id),
        "controller.quorum.voters": f"1@{broker.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": f"{protocol}:{protocol},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": protocol,
        "log.dirs": str(broker.log_dir),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # The default would reserve 128 MiB of a small heap.
        "log.cleaner.dedupe.buffer.size": str(10 * 1024 * 1024),
        **login_settings(broker.users),
    }


def login_settings(users: Mapping[str, str]) -> dict[str, str]:
    """SASL/PLAIN for these users, the first of them superuser, and nothing without an ACL."""
    if not users:
        return {}
    # Escaped twice: for the reader of the login configuration, and for that of the properties.
    escaped = {
        name: word.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        for name, word in users.items()
    }
    admin, password = next(iter(escaped.items()))
    known = " ".join(f'user_{name}="{word}"' for name, word in escaped.items())
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{admin}" password="{password}" {known};'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The controller's listener asks nobody who they are.
        "super.users": f"User:{admin};User:ANONYMOUS",
    }


def java_command(
    jars_dir: Path, main_class: str, *arguments: str, jvm: Sequence[str] = ()
) -> list[str]:
    """The command line of `main_class`"""
    options = (*JVM_OPTIONS, *jvm)
    return [java_tool("java"), *options, "-cp", f"{jars_dir}/*", main_class, *arguments]


def java_tool(name: str) -> str:
    """`java` or `javac` of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", name)) if home else name


def accepts_connections(port: int) -> bool:
    """Whether something listens on the loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def random_cluster_id() -> str:
    """A random id as Kafka writes them, without a leading dash: that would read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
