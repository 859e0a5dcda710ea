"""What a broker serves that starts on a directory, and what the tables hold of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.errors import CorruptSegmentError
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.settings.names import TopicName
from tests.jobs.ingest_segments.conftest import NOW_MS
from tests.kafka.broker import BrokerError, KafkaBroker
from tests.kafka.consume import QUIET, ConsumedRecord, consume_log, create_topics, serve_log
from tests.lake_sandbox import LakeSandbox
from tests.records.files.loaded_logs import CASES, Case, write_case
from tests.tables.logs import write_log
from tests.tables.nights import ingest, source_of
from tests.tables.partition_log import batch, write_segments

pytestmark = [pytest.mark.long, pytest.mark.broker]


def topic_of(case: Case) -> str:
    return case.name.replace(" ", "_")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with a topic for each case."""
    directory = tmp_path_factory.mktemp("source")
    for case in CASES:
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


def test_a_segment_whose_offsets_reach_too_far_is_ingested_once_a_broker_has_split_it(
    sandbox: LakeSandbox, cluster: str, kafka_jars: Path, tmp_path: Path
) -> None:
    name, far = TopicName(cluster, "t"), 2**31 + 5
    write_log(tmp_path / "source", "t", [[]], {"cleanup.policy": "compact"})
    source = write_segments(tmp_path / "source", {0: [batch(0), batch(far)]})
    write_segments(source, {far + 1: [batch(far + 1)]})
    with pytest.raises(CorruptSegmentError, match="it splits the segment"):
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
