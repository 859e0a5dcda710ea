"""Whose log a topic holds, and which sources may go on with it."""

from __future__ import annotations

import pytest

from ebbtide.errors import (
    ForeignLogError,
    OffsetGapError,
    RequestError,
)
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import to_properties
from tests.jobs.ingest_segments.conftest import NOW_MS, SmallLog
from tests.tables.contents import contents
from tests.tables.counted import assert_counted
from tests.tables.nights import ingest, source_of
from tests.tables.partition_log import (
    batch,
    identify,
)


@pytest.mark.parametrize("step", [Step.INGEST_BATCHES, Step.INGEST_STATE])
def test_what_a_killed_ingest_took_of_what_the_source_was_is_taken_anew(
    log: SmallLog, kill_at: list[Step], step: Step
) -> None:
    """The source was truncated and written anew, or its cleaner came."""
    log.killed(kill_at, step)
    log.write({0: [batch(0, 4), batch(4, 1)]})
    for left in (Step.LEFT_CLAIMED, Step.LEFT_BATCHES, Step.LEFT_RECORDS, Step.LEFT_STATE):
        if (step, left) == (Step.INGEST_BATCHES, Step.LEFT_BATCHES):
            continue  # it has left none
        log.killed(kill_at, left)
    log.ingest()
    unbroken = TopicName(f"{log.name.cluster}_unbroken", log.name.topic)
    ingest(log.spark, str(unbroken), log.source, NOW_MS)
    assert log.contents() == contents(log.spark, unbroken)
    assert_counted(log.spark, log.name)


def test_a_source_that_lost_what_a_killed_ingest_took_loses_nothing_in_the_tables(
    log: SmallLog, kill_at: list[Step]
) -> None:
    """It is refused as any gap is, and what the tables have stays there."""
    log.ingest()
    log.append(5, batch(10, 2))
    log.killed(kill_at, Step.INGEST_BATCHES)
    for base in (0, 5):
        log.path(base).unlink()
    log.write({12: [batch(12)]})
    with pytest.raises(OffsetGapError, match="2 offsets were removed there"):
        log.ingest()
    assert log.offsets() == [*range(12)]


def test_the_first_topic_id_that_a_source_names_is_kept_and_another_refused(log: SmallLog) -> None:
    log.ingest()  # it names none yet
    identify(log.source, "first-id")
    log.append(5, batch(10))
    log.ingest()
    assert log.topic().config.topic_id == "first-id"
    identify(log.source, "second-id")
    log.append(5, batch(11))
    with pytest.raises(ForeignLogError, match=r"expected topic id first-id .* found second-id"):
        log.ingest()
    assert log.topic().partitions[0].log_end_offset == 11

    identify(log.source, "third-id", partition=1)
    with pytest.raises(ForeignLogError, match="found second-id, third-id: the directory mixes"):
        log.ingest()


def test_the_topic_remembers_its_first_source_and_its_owner_may_name_another(log: SmallLog) -> None:
    log.ingest()
    assert log.topic().config.upstream == ("segments", str(log.source))
    log.set({"ebbtide.source": "kafka:main"})
    log.grow()
    log.ingest()
    assert log.topic().config.upstream == ("kafka", "main")


def test_a_source_that_goes_on_where_records_were_appended_directly_is_refused(
    log: SmallLog,
) -> None:
    log.ingest()
    state = log.topic().partitions[0]
    appended = state.moved(log_end_offset=12, first_appended_offset=state.log_end_offset)
    log.set(to_properties(0, appended))
    log.ingest()  # it ends where they begin
    log.grow()
    with pytest.raises(
        ForeignLogError, match=r"t-0 to end at or before offset 10, where direct appends"
    ):
        log.ingest()
    assert log.topic().partitions[0].log_end_offset == 12


def test_a_name_like_a_views_is_refused(log: SmallLog) -> None:
    for view in ("t__committed", "t__null_tombstones", "t__latest"):
        with pytest.raises(RequestError, match="without the suffix of a view"):
            ingest_segments(log.spark, TopicName("any", view), source_of(log.source, NOW_MS))


def test_kafkas_own_topics_are_not_archived(log: SmallLog) -> None:
    log.write({0: [batch(0)]}, topic="__consumer_offsets")
    listed = source_of(log.source, NOW_MS)
    assert listed.topics() == ["t"]
    assert len(listed.of(TopicName("any", "__consumer_offsets"))) == 1
