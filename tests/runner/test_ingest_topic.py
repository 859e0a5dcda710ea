"""The job against brokers that want a login: what it takes, and what it never shows."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from subprocess import CompletedProcess
from threading import Event, Thread

import pytest
from confluent_kafka.admin import AdminClient, ResourceType

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.ledger.own_tables import RUNS
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.state.topic_state import SLICE
from tests.jobs.ingest_topic.live import CONNECTION, NOW_MS, Writer, connect, create, records_of
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import QUIET
from tests.kafka.delete_broker import acl
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.ports import free_port
from tests.runner.submit import KILLED, submit
from tests.tables.nights import at
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.long]

# Its parts stand for what a shell, JSON and Java's login configuration could stumble over.
WORD = "hushedword"
PASSWORD = f'{WORD}"\\;=$1 {{}}'
USERS = {"admin": PASSWORD, "describer": "other-word"}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> LakeSandbox:
    return LakeSandbox(tmp_path_factory.mktemp("lake") / "home")


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), users=USERS, **QUIET) as broker:
        yield broker


def run(
    sandbox: LakeSandbox, cluster: str, *arguments: str, kill_at: Step | None = None
) -> CompletedProcess[str]:
    where = ["--connection", CONNECTION, "--cluster", cluster, "--now", at(NOW_MS).isoformat()]
    return submit(sandbox, "ingest_topic", *where, *arguments, kill_at=kill_at)


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.LIVE_SLICE, Step.INGEST_BATCHES])
def test_a_killed_run_is_finished_by_the_next(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    name = TopicName("killed", step)
    connect(monkeypatch, broker)
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(4)

    killed = run(sandbox, "killed", "--topic", str(name), kill_at=step)
    assert killed.returncode == KILLED, killed.stderr[-2000:]
    writer.write(2)
    done = run(sandbox, "killed", "--topic", str(name))

    assert done.returncode == 0, done.stderr[-2000:]
    assert [record.offset for record in records_of(sandbox.session, name)] == list(range(6))
    assert load(sandbox.session, name).partitions[0].log_end_offset == 6
    assert SLICE not in load(sandbox.session, name).properties


@pytest.fixture
def telling(sandbox: LakeSandbox) -> Iterator[None]:
    """Spark and the Kafka client say all they say at level INFO, and more."""
    texts = {path: path.read_text() for path in (sandbox.home / "conf").iterdir()}
    for path, text in texts.items():
        told = text.replace("rootLogger.level = warn", "rootLogger.level = info")
        path.write_text(re.sub(r"(spark.log.level +)WARN", r"\1INFO", told))
    yield
    for path, text in texts.items():
        path.write_text(text)


@pytest.mark.long
def test_a_password_shows_nowhere_whatever_is_logged(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, telling: None
) -> None:
    """Not in output, not on a command line, not in `runs`, also where the read itself fails."""
    connect(monkeypatch, broker)
    for topic in ("told.a", "told.b", "untold"):
        create(broker, topic)
        Writer(broker, topic).write(2)
    with command_lines() as seen:
        done = run(sandbox, "log", "--topics-pattern", "told.*")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ConsumerConfig values" in done.stderr
    assert "sasl.jaas.config = [hidden]" in done.stderr
    assert any("ingest_topic.py" in line for line in seen)
    rows = sandbox.session.table(RUNS.in_catalog()).where("topic LIKE 'log.%'").collect()
    assert {row["topic"] for row in rows} == {"log.told.a", "log.told.b"}
    assert WORD not in f"{done.stdout}{done.stderr}{seen}{rows}"


@pytest.mark.long
def test_a_user_who_may_not_read_is_named_and_no_password_is(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, telling: None
) -> None:
    create(broker, "closed")
    Writer(broker, "closed").write(2)
    admin = AdminClient(broker.client())
    allowed = [acl("describer", ResourceType.TOPIC, "closed", what) for what in DESCRIBES]
    for done in admin.create_acls(allowed).values():
        done.result(timeout=PATIENCE_S)
    connect(monkeypatch, broker, **broker.client("describer"))
    refused = run(sandbox, "log", "--topic", "log.closed")
    assert refused.returncode == 1
    message = "ConfigurationError: expected the offsets of closed from the brokers of "
    assert message in refused.stdout  # where spark-submit puts what the driver says
    assert "found org.apache.kafka.common.errors.TopicAuthorizationException" in refused.stdout
    assert USERS["describer"] not in refused.stdout + refused.stderr


DESCRIBES = ("DESCRIBE", "DESCRIBE_CONFIGS")


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Every command line that any process of this machine has meanwhile."""
    seen: set[str] = set()
    is_over = Event()

    def look() -> None:
        while not is_over.wait(0.1):
            for path in glob("/proc/[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(Path(path).read_bytes().decode(errors="replace"))

    looking = Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        is_over.set()
        looking.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RequestError: expected --topic or --topics-pattern, found neither"),
        (["--topics-pattern", "("], "RequestError: expected a regular expression, found '('"),
        (["--topics-pattern", "none"], "UnknownTopicError: expected topics named 'none' at"),
        (["--topic", "other.t"], "RequestError: expected topics of cluster 'log'"),
        (["--topic", "log.__consumer_offsets"], "that are not internal, found log.__cons"),
    ],
)
def test_what_says_no_topic_is_refused_before_spark_starts(
    broker: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    connect(monkeypatch, broker)
    assert main_with(*arguments) == ExitCode.REFUSED
    assert message in capsys.readouterr().err


def test_brokers_that_do_not_answer_may_answer_a_retry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    nowhere = {"bootstrap.servers": f"127.0.0.1:{port}"}
    monkeypatch.setenv(CONNECTIONS, json.dumps({CONNECTION: nowhere}))
    assert main_with("--topics-pattern", ".*") == ExitCode.TRANSIENT
    assert "UnavailableError: expected the brokers of connection 'main'" in capsys.readouterr().err


def main_with(*arguments: str) -> int:
    """The exit code of the job's main in this process."""
    main = runpy.run_path(str(ROOT / "jobs" / "ingest_topic.py"))["main"]
    where = ["--connection", CONNECTION, "--cluster", "log", "--run-id", "test"]
    return int(main([*where, "--now", at(NOW_MS).isoformat(), *arguments]))
