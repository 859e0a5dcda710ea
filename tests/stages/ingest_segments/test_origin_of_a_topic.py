"""Whose log a topic holds, and which sources may go on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import (
    ForeignLogError,
    OffsetGapError,
    RequestError,
)
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import to_properties
from ebbtide.stages.ingest_segments.stage import ingest_segments
from tests.stages.ingest_segments.small_sources import NOW_MS, grow, name, offsets, source, spark
from tests.tables.contents import contents
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError
from tests.tables.nights import ingest, source_of
from tests.tables.partition_log import (
    append,
    batch,
    identify,
    segment_path,
    write_segments,
)

__all__ = ["name", "source", "spark"]


@pytest.mark.parametrize("step", [Step.INGEST_BATCHES, Step.INGEST_STATE])
def test_what_a_killed_ingest_took_of_what_the_source_was_is_taken_anew(
    spark: SparkSession, name: TopicName, source: Path, kill_at: list[Step], step: Step
) -> None:
    """The source was truncated and written anew, or its cleaner came."""
    kill_at.append(step)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, NOW_MS)
    write_segments(source, {0: [batch(0, 4), batch(4, 1)]})
    for left in (Step.LEFT_CLAIMED, Step.LEFT_BATCHES, Step.LEFT_RECORDS, Step.LEFT_STATE):
        if (step, left) == (Step.INGEST_BATCHES, Step.LEFT_BATCHES):
            continue  # it has left none
        kill_at.append(left)
        with pytest.raises(KilledError):
            ingest(spark, str(name), source, NOW_MS)
    ingest(spark, str(name), source, NOW_MS)
    unbroken = TopicName(f"{name.cluster}_unbroken", name.topic)
    ingest(spark, str(unbroken), source, NOW_MS)
    assert contents(spark, name) == contents(spark, unbroken)
    assert_counted(spark, name)


def test_a_source_that_lost_what_a_killed_ingest_took_loses_nothing_in_the_tables(
    spark: SparkSession, name: TopicName, source: Path, kill_at: list[Step]
) -> None:
    """It is refused as any gap is, and what the tables have stays there."""
    ingest(spark, str(name), source, NOW_MS)
    append(source, 5, batch(10, 2))
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, NOW_MS)
    for base in (0, 5):
        segment_path(source, base).unlink()
    write_segments(source, {12: [batch(12)]})
    with pytest.raises(OffsetGapError, match="2 offsets were removed there"):
        ingest(spark, str(name), source, NOW_MS)
    assert offsets(contents(spark, name)) == [*range(12)]


class TestTopicId:
    @pytest.fixture
    def identified(self, spark: SparkSession, name: TopicName, source: Path) -> Iterator[Path]:
        """A source that named no id at first and then one."""
        ingest(spark, str(name), source, NOW_MS)
        identify(source, "first-id")
        append(source, 5, batch(10))
        ingest(spark, str(name), source, NOW_MS)
        return source

    def test_the_first_that_a_source_names_is_kept_and_another_refused(
        self, spark: SparkSession, name: TopicName, identified: Path
    ) -> None:
        assert load(spark, name).config.topic_id == "first-id"
        identify(identified, "second-id")
        append(identified, 5, batch(11))
        with pytest.raises(ForeignLogError, match=r"expected topic id first-id .* found second-id"):
            ingest(spark, str(name), identified, NOW_MS)
        assert load(spark, name).partitions[0].log_end_offset == 11

        identify(identified, "third-id", partition=1)
        with pytest.raises(ForeignLogError, match="found second-id, third-id: partitions of diff"):
            ingest(spark, str(name), identified, NOW_MS)


def test_the_topic_remembers_its_first_source_and_its_owner_may_name_another(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, NOW_MS)
    assert load(spark, name).config.upstream == ("segments", str(source))
    topic = load(spark, name)
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: {"ebbtide.source": "kafka:main"})
    grow(source)
    ingest(spark, str(name), source, NOW_MS)
    assert load(spark, name).config.upstream == ("kafka", "main")


def test_a_source_that_goes_on_where_records_were_appended_directly_is_refused(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, NOW_MS)
    state = load(spark, name).partitions[0]
    appended = to_properties(
        0, state.moved(log_end_offset=12, first_appended_offset=state.log_end_offset)
    )
    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: appended)
    ingest(spark, str(name), source, NOW_MS)  # it ends where they begin
    grow(source)
    with pytest.raises(ForeignLogError, match=r"t-0 to end at or before offset 10, from which on"):
        ingest(spark, str(name), source, NOW_MS)
    assert load(spark, name).partitions[0].log_end_offset == 12


def test_a_name_like_a_views_is_refused(spark: SparkSession, source: Path) -> None:
    for view in ("t__committed", "t__v1", "t__table"):
        with pytest.raises(RequestError, match="does not end like a view's"):
            ingest_segments(spark, TopicName("any", view), source_of(source, NOW_MS))


def test_kafkas_own_topics_are_not_archived(source: Path) -> None:
    write_segments(source, {0: [batch(0)]}, topic="__consumer_offsets")
    listed = source_of(source, NOW_MS)
    assert listed.topics() == ["t"]
    assert len(listed.of(TopicName("any", "__consumer_offsets"))) == 1
