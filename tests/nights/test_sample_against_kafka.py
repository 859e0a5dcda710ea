"""The sample, night by night: our tables hold exactly what Kafka's own cleaner leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide.settings.names import TopicName
from tests.kafka.oracle import LogState, Round, manifest_logs, run_oracle
from tests.lake_sandbox import LakeSandbox
from tests.tables.kafka_view import View, view_of_kafka, view_of_table
from tests.tables.nights import DAY_MS, HOUR_MS, ingest, night

NIGHTS = 3
TOPICS = {"flights": 3, "audit": 1}


@pytest.fixture(scope="module")
def first_night_ms(sample: Path) -> int:
    """The first 01:00 UTC after the day of the sample's last append."""
    manifest = json.loads((sample / "ebbtide-manifest.json").read_text())
    last_append_ms: int = manifest["last_append_ms"]
    return (last_append_ms // DAY_MS + 1) * DAY_MS + HOUR_MS


@pytest.fixture(scope="module")
def ours(sandbox: LakeSandbox, sample: Path, first_night_ms: int) -> dict[str, list[View]]:
    """Each partition as ingested and after each night, in the tables."""
    views: dict[str, list[View]] = {}

    def look(topic: str) -> None:
        for partition in range(TOPICS[topic]):
            name = TopicName("log", topic)
            view = view_of_table(sandbox.session, name, partition)
            views.setdefault(f"{topic}-{partition}", []).append(view)

    for topic in TOPICS:
        ingest(sandbox.session, f"log.{topic}", sample, first_night_ms)
        look(topic)
        for i in range(NIGHTS):
            night(sandbox.session, f"log.{topic}", first_night_ms + i * DAY_MS)
            look(topic)
    return views


@pytest.fixture(scope="module")
def kafkas(sample: Path, kafka_jars: Path, first_night_ms: int) -> dict[str, list[LogState]]:
    """The same as Kafka does it."""
    rounds = [Round(now_ms=first_night_ms + i * DAY_MS, retention=True) for i in range(NIGHTS)]
    logs = manifest_logs(sample, rounds)
    results = run_oracle(logs, kafka_jars)
    return {
        log.directory.name: [result.initial, *result.rounds]
        for log, result in zip(logs, results, strict=True)
    }


PARTITIONS = [f"{topic}-{p}" for topic, count in TOPICS.items() for p in range(count)]


@pytest.mark.parametrize("after", range(NIGHTS + 1))
@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_tables_hold_what_kafka_leaves(
    ours: dict[str, list[View]], kafkas: dict[str, list[LogState]], partition: str, after: int
) -> None:
    view, expected = ours[partition][after], view_of_kafka(kafkas[partition][after])
    assert view.records == expected.records
    assert [exact(b) for b in view.batches] == [exact(b) for b in expected.batches]
    assert view.segments == expected.segments
    assert view.log_start_offset == expected.log_start_offset
    assert view.log_end_offset == expected.log_end_offset


@pytest.mark.parametrize("after", range(NIGHTS + 1))
@pytest.mark.parametrize("partition", PARTITIONS)
def test_sizes_are_exact_but_for_rewritten_compressed_batches(
    ours: dict[str, list[View]], kafkas: dict[str, list[LogState]], partition: str, after: int
) -> None:
    view, expected = ours[partition][after], view_of_kafka(kafkas[partition][after])
    before = {b["base_offset"]: b for b in view_of_kafka(kafkas[partition][0]).batches}
    pairs = list(zip(view.batches, expected.batches, strict=True))
    for ours_, kafkas_ in pairs:
        is_untouched = exact(kafkas_) == exact(before[kafkas_["base_offset"]])
        if kafkas_["compression"] == "none" or is_untouched:
            assert ours_["size_bytes"] == kafkas_["size_bytes"], kafkas_
    estimated, real = (sum(pair[i]["size_bytes"] for pair in pairs) for i in (0, 1))
    assert estimated == pytest.approx(real, rel=0.03)


def exact(batch: dict[str, Any]) -> dict[str, Any]:
    """All that must be equal whatever the codec."""
    return {name: value for name, value in batch.items() if name != "size_bytes"}


def test_the_second_night_reaches_the_horizons_of_the_first(
    ours: dict[str, list[View]], first_night_ms: int
) -> None:
    _, first, second, _ = ours["flights-0"]
    horizons = {b["delete_horizon_ms"] for b in first.batches if b["delete_horizon_ms"]}
    assert horizons == {first_night_ms + 12 * HOUR_MS}
    assert sum(r[4] is None for r in first.records) > sum(r[4] is None for r in second.records)
