"""What a broker serves that starts on a directory, and what the tables hold of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ebbtide.errors import CorruptSegmentError, OffsetGapError, SourceError
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.records.log_directory import list_log_directory
from ebbtide.settings.names import TopicName
from tests.jobs.ingest_segments.conftest import NOW_MS
from tests.kafka.broker import BrokerError, KafkaBroker
from tests.kafka.consume import (
    QUIET,
    ConsumedRecord,
    consume,
    consume_log,
    create_topics,
    serve_log,
)
from tests.kafka.tiered_broker import TIERED, tiered_broker
from tests.lake_sandbox import LakeSandbox
from tests.records.files.loaded_logs import CASES, CASES_REFUSED, Case, write_case
from tests.tables.logs import FIRST_MS, write_log
from tests.tables.nights import HOUR_MS, ingest, source_of
from tests.tables.partition_log import batch, write_segments
from tests.waiting import PATIENCE_S, wait_until

IN_2096_MS = 4_000_000_000_000
pytestmark = [pytest.mark.long, pytest.mark.broker]


def topic_of(case: Case) -> str:
    return case.name.replace(" ", "_")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with a topic for each case."""
    directory = tmp_path_factory.mktemp("source")
    for case in (*CASES, *CASES_REFUSED):
        write_case(directory, case, topic_of(case))
    return directory


@pytest.fixture(scope="module")
def served(
    source: Path, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], list[ConsumedRecord]]:
    work = tmp_path_factory.mktemp("broker")
    return consume_log(source, kafka_jars, work)["read_uncommitted"]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_tables_hold_what_a_broker_serves(
    sandbox: LakeSandbox,
    source: Path,
    served: dict[tuple[str, int], list[ConsumedRecord]],
    case: Case,
) -> None:
    name = TopicName("loaded", topic_of(case))
    consumed = [(r.offset, r.key, r.value) for r in served[name.topic, 0]]
    assert [offset for offset, _, _ in consumed] == case.offsets
    compacted = replace(source_of(source, NOW_MS), settings={"kafka.cleanup.policy": "compact"})
    assert ingest_segments(sandbox.session, name, compacted).error is None
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [(r["offset"], bytes(r["key"]), bytes(r["value"])) for r in rows] == consumed


@pytest.mark.parametrize("case", CASES_REFUSED, ids=[case.name for case in CASES_REFUSED])
def test_what_a_broker_serves_of_a_copy_that_is_not_whole_is_refused(
    sandbox: LakeSandbox,
    source: Path,
    served: dict[tuple[str, int], list[ConsumedRecord]],
    case: Case,
) -> None:
    """A broker says no word, and may serve other records than the one that was copied."""
    name = TopicName("loaded", topic_of(case))
    assert [record.offset for record in served[name.topic, 0]] == case.offsets
    outcome = ingest_segments(sandbox.session, name, source_of(source, NOW_MS))
    assert isinstance(outcome.error, SourceError)
    assert re.search(case.refusal, str(outcome.error))


def test_which_of_two_files_a_broker_serves_depends_on_where_a_consumer_begins(
    kafka_jars: Path, tmp_path: Path
) -> None:
    """So no answer of an ingest would be right: the cleaner has removed offsets 15 and 16."""
    case = next(case for case in CASES_REFUSED if "magic 1" in case.name)
    write_case(tmp_path / "source", case, "t")
    with serve_log(tmp_path / "source", kafka_jars, tmp_path / "broker") as broker:
        client, partitions = broker.client(), [("t", 0)]
        at_start = consume(client, partitions, "read_uncommitted")["t", 0]
        at_file = consume(client, partitions, "read_uncommitted", first_offset=15)["t", 0]
    assert [record.offset for record in at_start][5:] == [17, 18, 19]
    assert [record.offset for record in at_file] == [15, 16, 17, 18, 19]


def test_a_segment_whose_offsets_reach_too_far_is_ingested_once_a_broker_has_split_it(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path
) -> None:
    name, far = TopicName(cluster, "t"), 2**31 + 5
    write_log(tmp_path / "source", "t", [[]], {"cleanup.policy": "compact"})
    source = write_segments(tmp_path / "source", {0: [batch(0), batch(far)]})
    write_segments(source, {far + 1: [batch(far + 1)]})
    with pytest.raises(CorruptSegmentError, match="The broker splits the segment"):
        ingest(sandbox.session, str(name), source, NOW_MS)
    with serve_log(source, kafka_jars, tmp_path / "broker") as broker:
        pass
    shutil.copytree(broker.log_dir / "t-0", tmp_path / "split" / "t-0")
    shutil.copy(source / "ebbtide-manifest.json", tmp_path / "split")
    ingest(sandbox.session, str(name), tmp_path / "split", NOW_MS)
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [row["offset"] for row in rows] == [0, far, far + 1]


def test_a_broker_does_not_start_on_two_directories_of_a_partition(
    kafka_jars: Path, tmp_path: Path
) -> None:
    """As ebbtide refuses the partition."""
    broker = KafkaBroker(kafka_jars, tmp_path / "broker", **QUIET)
    with broker:
        create_topics(broker.bootstrap_servers, {"t": 1})
    shutil.copytree(broker.log_dir / "t-0", broker.log_dir / "t-00")
    with pytest.raises(BrokerError, match="Duplicate log directories"):
        broker.start()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("x\n", "Error while reading partition metadata file", id="no field"),
        pytest.param("version: 0\n", "Error starting LogManager", id="no topic id"),
    ],
)
def test_a_broker_does_not_start_on_metadata_that_it_cannot_read(
    kafka_jars: Path, tmp_path: Path, text: str, why: str
) -> None:
    """As ebbtide refuses the partition."""
    broker = KafkaBroker(kafka_jars, tmp_path / "broker", **QUIET)
    with broker:
        create_topics(broker.bootstrap_servers, {"t": 1})
    (broker.log_dir / "t-0" / "partition.metadata").write_text(text)
    with pytest.raises(BrokerError, match="ended with status 1"):
        broker.start()
    assert why in broker.output.read_text()
    (directory,) = list_log_directory(str(broker.log_dir))
    assert isinstance(directory.error, SourceError)
    assert f"{directory.path}/partition.metadata: expected" in str(directory.error)


def write_old_and_new(client: Mapping[str, str]) -> None:
    """Four records of 2023 and two of 2096: only what is old leaves a tiered directory."""
    admin = AdminClient(dict(client))
    for created in admin.create_topics([NewTopic("t", 1, 1, config=TIERED)]).values():
        created.result(PATIENCE_S)
    producer = Producer(dict(client))
    for offset in range(6):
        timestamp_ms = (FIRST_MS if offset < 4 else IN_2096_MS) + offset * HOUR_MS
        producer.produce("t", b"v%d" % offset, b"k%d" % offset, timestamp=timestamp_ms)
        producer.flush()


def test_what_a_broker_serves_from_its_remote_tier_is_missed_in_its_directory(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    broker = tiered_broker(kafka_jars, tmp_path / "broker")
    with broker:
        write_old_and_new(broker.client())
        directory = broker.log_dir / "t-0"
        wait_until(lambda: not [*directory.glob(f"{3:020}.log")], "its tier has what is old")
    with broker:  # that starts on the directory
        consumed = consume(broker.client(), [("t", 0)], "read_uncommitted")["t", 0]
    assert [record.offset for record in consumed] == [*range(6)]
    # What the broker deleted is there for a minute as `.deleted`; a copy has no such file.
    assert [path.name for path in sorted(directory.glob("*.log"))] == [
        f"{4:020}.log",
        f"{5:020}.log",
    ]

    source = source_of(broker.log_dir, NOW_MS)
    tiered = replace(
        source,
        directories=[d for d in source.directories if d.topic == "t"],
        settings={f"kafka.{setting}": value for setting, value in TIERED.items()},
    )
    error = ingest_segments(sandbox.session, name, tiered).error
    assert isinstance(error, OffsetGapError)
    assert "so offsets 0 to 3 are in the remote tier" in str(error)
    assert "ingest_topic" in str(error)
    assert ingest_segments(sandbox.session, name, replace(tiered, accept_gap=True)).error is None
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [(r["offset"], bytes(r["key"]), bytes(r["value"])) for r in rows] == [
        (r.offset, r.key, r.value) for r in consumed[4:]
    ]
