from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError, UnknownTopicError, UnreadableTableError
from ebbtide.lake.reader import open_lake
from ebbtide.lake.runs import newest
from ebbtide.orchestration.handover import chosen_topics
from tests.lake_sandbox import MIDNIGHT, LakeSandbox, partition_result, state_of


def test_a_lake_nobody_wrote_to_is_empty(lake: LakeSandbox) -> None:
    with open_lake() as opened:
        assert opened.topic_names() == []
        assert opened.runs() == []
    assert not (lake.home / "lake" / "catalog.db").exists()


def test_topics_are_the_tables_that_say_so(lake: LakeSandbox) -> None:
    lake.topic("log.flights")
    lake.topic("eu-1.a.b-c_d")
    lake.run("log.flights", "clean_log")
    lake.session.sql("CREATE TABLE lake.log.notes (text STRING) USING iceberg")
    with open_lake() as opened:
        assert opened.topic_names() == ["eu-1.a.b-c_d", "log.flights"]


def test_a_topic_carries_configuration_and_state(lake: LakeSandbox) -> None:
    states = {0: state_of(log_start_offset=3), 11: state_of(log_end_offset=200)}
    lake.topic("log.a.b", states, {"kafka.cleanup.policy": "compact,delete"})
    with open_lake() as opened:
        topic = opened.topic("log.a.b")
    assert topic.partitions == states
    assert topic.config.cleanup_policy == {"compact", "delete"}
    assert not topic.has_replicas


@pytest.mark.parametrize("name", ["log.other", "eu.flights"])
def test_an_unknown_topic_is_named_with_those_there_are(lake: LakeSandbox, name: str) -> None:
    lake.topic("log.flights")
    message = f"^expected a table for topic {name}, found none. The lake has log.flights$"
    with open_lake() as opened, pytest.raises(UnknownTopicError, match=message):
        opened.topic(name)


def test_bytes_of_files_are_those_of_both_tables_by_partition(lake: LakeSandbox) -> None:
    lake.topic("log.t", {0: state_of(), 1: state_of()})
    lake.records("log.t", [(0, 1), (1, 1)])
    lake.batches("log.t", [(1, 1, 0, 1)])
    expected = {0: 0, 1: 0}
    for table in ("lake.log.t", "lake.log_batches.t"):
        for row in lake.session.table(f"{table}.files").collect():
            expected[row["partition"]["partition"]] += row["file_size_in_bytes"]
    with open_lake() as opened:
        contents = opened.contents("log.t")
    assert {partition: content.file_bytes for partition, content in contents.items()} == expected


def test_a_table_that_cannot_be_read_is_its_own_topics_problem_only(lake: LakeSandbox) -> None:
    for topic in ("bad", "good"):
        lake.topic(f"log.{topic}")
    with open_lake() as opened:
        broken = opened.records("log.bad").metadata_location.removeprefix("file:")
    Path(broken).write_bytes(b"cut off")
    with open_lake() as opened:
        assert opened.topic_names() == ["log.bad", "log.good"]
        assert opened.topic("log.good").name == "log.good"
        assert chosen_topics(opened, None) == ["log.bad", "log.good"]
        with pytest.raises(
            UnreadableTableError, match=r"^expected a readable table of topic log\.bad, found "
        ):
            opened.topic("log.bad")
        with pytest.raises(UnknownTopicError, match=r"The lake has log\.bad, log\.good"):
            opened.topic("log.other")


def test_a_missing_manifest_is_its_own_topics_problem_only(lake: LakeSandbox) -> None:
    for topic in ("log.bad", "log.good"):
        lake.topic(topic, {0: state_of()})
        lake.records(topic, [(0, 1)])
    (manifest,) = lake.session.table("lake.log.bad.manifests").select("path").collect()
    Path(manifest.path.removeprefix("file:")).unlink()
    with open_lake() as opened:
        assert opened.contents("log.good")[0].records == 1
        message = r"^expected readable manifests of topic log\.bad, found FileNotFoundError: "
        with pytest.raises(UnreadableTableError, match=message):
            opened.contents("log.bad")


def test_live_rows_are_what_a_scan_returns(lake: LakeSandbox) -> None:
    lake.topic("log.t")
    lake.records("log.t", [(0, offset) for offset in range(10)])
    lake.records("log.t", [(1, offset) for offset in range(10)])
    lake.session.sql("DELETE FROM lake.log.t WHERE offset IN (1, 3)")
    lake.session.sql("DELETE FROM lake.log.t WHERE offset = 5 AND `partition` = 1")
    with open_lake() as opened:
        contents = opened.contents("log.t")
        assert {partition: content.records for partition, content in contents.items()} == {
            0: 8,
            1: 7,
        }
        assert opened.records("log.t").scan().count() == 15


def test_runs_are_found_by_column_and_come_oldest_first(lake: LakeSandbox) -> None:
    later = MIDNIGHT + timedelta(minutes=1)
    partitions = {0: partition_result(superseded=3)}
    lake.run("log.a", "clean_log", partitions=partitions, rows_removed=3, ended=later)
    lake.run("log.a", "clean_log", error=ConfigurationError("expected x, found y"))
    lake.run("log.b", "clean_log", run_id="run-2")
    with open_lake() as opened:
        failed, succeeded = opened.runs(run_id="run-1", task="clean_log")
        assert [run.topic for run in opened.runs(topic=["log.b", "log.c"])] == ["log.b"]
    assert (failed.status, failed.error_class) == ("failed", "ConfigurationError")
    assert (failed.error, failed.is_transient) == ("expected x, found y", False)
    assert succeeded.succeeded
    assert succeeded.partitions == {0: partition_result(superseded=3)}
    assert newest([failed, succeeded]) == {("log.a", "clean_log"): succeeded}
