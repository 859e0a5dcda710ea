"""What a DeleteRecords request means in offsets, and what stands in its way."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.iceberg.commits import Step
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.specs.delete_request import parse_request
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import answer_request

# Two partitions of these, a batch and a segment each pair; the fourth is older than the third.
AT_MS = [[0, 10], [30, 20], [40, 50]]
MESSAGES = [[Message("k", "v", at_ms) for at_ms in pair] for pair in AT_MS]
EARLY, LATE = FIRST_MS + 25, FIRST_MS + 51
CATALOG = "spark.sql.catalog.lake"


@pytest.fixture
def bench(empty: Bench) -> Bench:
    for partition in range(2):
        write_log(empty.home / "log", "t", MESSAGES, {}, partition=partition)
    empty.ingest(empty.home / "log", FIRST_MS)
    return empty


def ask(
    spark: SparkSession, name: TopicName, *partitions: Any, plan_only: bool = False, **fields: Any
) -> JobOutcome:
    asked = {"topic": str(name), **({"partitions": list(partitions)} if partitions else fields)}
    request = parse_request(json.dumps({"topics": [asked]}))
    now_ms = FIRST_MS + 1000
    return answer_request(spark, name, request.topics[name], now_ms, plan_only=plan_only)


def low_watermarks(outcome: JobOutcome) -> dict[int, int]:
    return {
        partition: numbers["low_watermark"] for partition, numbers in outcome.partitions.items()
    }


def test_a_time_means_all_partitions_and_keeps_what_is_older_behind_it(bench: Bench) -> None:
    outcome = ask(bench.spark, bench.name, timestamp=EARLY)
    assert low_watermarks(outcome) == {0: 2, 1: 2}
    assert [numbers["older_kept"] for numbers in outcome.partitions.values()] == [1, 1]
    assert bench.left() == [2, 3, 4, 5]


@pytest.mark.long
def test_partitions_may_be_asked_in_different_ways(bench: Bench) -> None:
    by_age = {"partition": 0, "age": "PT0.951S"}  # before now, 1000 ms after the first
    unknown = {"partition": 7, "timestamp": EARLY}
    outcome = ask(bench.spark, bench.name, by_age, {"partition": 1, "timestamp": LATE}, unknown)
    assert low_watermarks(outcome) == {0: 5, 1: 6, 7: -1}
    assert outcome.partitions[7]["error_name"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert outcome.partitions[0]["timestamp_ms"] == FIRST_MS + 49


@pytest.mark.long
def test_a_record_below_the_log_start_is_not_found_though_its_row_is_there(
    bench: Bench, kill_at: list[Step]
) -> None:
    kill_at.append(Step.TRUNCATE_RECORD_SEGMENTS)
    with pytest.raises(KilledError):
        ask(bench.spark, bench.name, offset=4)
    assert len(bench.left()) == 6
    planned = ask(bench.spark, bench.name, timestamp=EARLY, plan_only=True)
    assert low_watermarks(planned) == {0: 4, 1: 4}
    assert [numbers["requested_offset"] for numbers in planned.partitions.values()] == [4, 4]


def test_a_plan_moves_nothing(bench: Bench) -> None:
    assert low_watermarks(ask(bench.spark, bench.name, offset=-1, plan_only=True)) == {0: 6, 1: 6}
    assert bench.load().partitions[0].log_start_offset == 0


def test_a_topic_without_tables_is_unknown_in_every_partition_named(empty: Bench) -> None:
    nowhere = TopicName("no", "where")
    outcome = ask(empty.spark, nowhere, {"partition": 3, "timestamp": EARLY})
    assert outcome.partitions[3]["error_name"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert outcome.topic["error_code"] == 3
    whole = ask(empty.spark, nowhere, age="P1D")
    assert (whole.partitions, whole.topic["error_code"]) == ({}, 3)
    assert str(whole.error) == (
        "every partition: UNKNOWN_TOPIC_OR_PARTITION: the topic has no such partition in the "
        "lake; Browse > Retention lists the topics"
    )


def test_groups_need_to_know_their_cluster(empty: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONNECTIONS, raising=False)
    empty.sandbox.topic(str(empty.name))
    for replicas in ("", "copy.log", "kafka:a, kafka:b"):
        set_replicas(empty, replicas)
        with pytest.raises(RequestError, match=r"^expected a connection for the groups, or one"):
            ask(empty.spark, empty.name, groups=["g"])
    set_replicas(empty, "copy.log,kafka:main")
    with pytest.raises(ConfigurationError, match=r"^expected the Kafka connection 'main' with"):
        ask(empty.spark, empty.name, groups=["g"])


def set_replicas(bench: Bench, replicas: str) -> None:
    change = f"SET TBLPROPERTIES ('ebbtide.replicas' = '{replicas}')"
    bench.spark.sql(f"ALTER TABLE {bench.name.records_table} {change}")


class Forbidding(BaseHTTPRequestHandler):
    """An Iceberg REST catalog that lets this user do nothing."""

    def do_GET(self) -> None:
        is_config = self.path.startswith("/v1/config")
        error = {"message": "not yours", "type": "ForbiddenException", "code": 403}
        body = json.dumps({"defaults": {}, "overrides": {}} if is_config else {"error": error})
        self.send_response(200 if is_config else 403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def forbidding() -> Iterator[str]:
    """The catalog's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Forbidding)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_the_catalog_forbids_is_an_authorization_that_failed(
    empty: Bench, forbidding: str
) -> None:
    session = empty.spark.newSession()
    session.conf.set(CATALOG, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{CATALOG}.type", "rest")
    session.conf.set(f"{CATALOG}.uri", forbidding)
    outcome = ask(session, TopicName("log", "t"), {"partition": 0, "offset": 1})
    numbers = outcome.partitions[0]
    assert (numbers["error_code"], numbers["low_watermark"]) == (29, -1)
    assert "not yours" in numbers["note"] or "Forbidden" in numbers["note"]
