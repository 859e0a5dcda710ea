"""A lake to look at: topics with segments, failures and nights, and a key that was erased."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.ledger.topic_summary import TopicSummary
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState
from tests.lake_sandbox import LakeSandbox, as_ebbtide, partition_result, state_of
from tests.tables.adopted import Record, adopt, append, clean, spark_table

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
NIGHTS = 12
FLIGHTS, AUDIT, ORDERS = "demo.flights", "demo.audit", "shop.orders"
ADOPTED = "raw.payments"  # in a table of Spark's Kafka source
ERASED, KEPT = "N14228", "N24211"


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def fill(lake: LakeSandbox) -> None:
    """Make all of it; takes about half a minute."""
    horizon = ms(NOW + 2 * DAY)
    flights = {p: partition(p, next_clean_ms=horizon) for p in range(6)}
    compact = {"kafka.cleanup.policy": "compact", "kafka.delete.retention.ms": "259200000"}
    lake.topic(FLIGHTS, flights, compact)
    lake.topic(AUDIT, {0: partition(0)}, {"kafka.cleanup.policy": "delete"})
    lake.topic(ORDERS, {0: partition(0), 1: partition(1)}, {"kafka.cleanup.policy": "compact"})
    keys(lake)
    adopted(lake)
    for number, night in enumerate(nights()):
        a_night(lake, night, number)
    failures(lake)


def partition(number: int, **changes: Any) -> PartitionState:
    """Ten segments of a thousand offsets: the last three are dirty, and the last is active."""
    segments = tuple(SegmentStart(base, 0) for base in range(1000, 11_000, 1000))
    return state_of(
        **{
            "log_start_offset": 1000 + 150 * number,
            "first_dirty_offset": 8000,
            "first_unmarked_offset": 10_400 + number,
            "log_end_offset": 10_400 + number,
            "segments": segments,
            "next_clean_ms": -1,
            **changes,
        }
    )


def nights() -> Iterator[datetime]:
    for ago in range(NIGHTS, 0, -1):
        yield (NOW - ago * DAY).replace(hour=2, minute=0, second=0)


def keys(lake: LakeSandbox) -> None:
    """A key with a superseded record and a tombstone that has a horizon, and one that stays."""
    horizon = ms(NOW + 2 * DAY)
    rows = [
        (1500, ERASED, False),
        (8500, ERASED, True),
        (2500, KEPT, False),
    ]
    values = ", ".join(
        f"(0, {offset}, 1000, {offset}, timestamp '{NOW - 20 * DAY:%Y-%m-%d %H:%M:%S}Z', "
        f"timestamp '{NOW - 20 * DAY:%Y-%m-%d %H:%M:%S}Z', cast('{key}' AS binary), "
        + ("true, 'null_value')" if is_tombstone else "false, null)")
        for offset, key, is_tombstone in rows
    )
    with as_ebbtide(lake.session):
        lake.session.sql(
            "INSERT INTO lake.demo.flights (`partition`, offset, segment, batch, timestamp, "
            f"event_time, key, is_tombstone, tombstone_by) VALUES {values}"
        )
    lake.batches(FLIGHTS, [(0, 1500, 0, 1), (0, 2500, 0, 1), (0, 8500, 64, horizon)])


def adopted(lake: LakeSandbox) -> None:
    """A table that others write, and a round that removed some of its rows."""
    spark = lake.session
    spark_table(spark, ADOPTED)
    append(spark, ADOPTED, [Record(number, f"p{number % 7}") for number in range(70)])
    adopt(spark, ADOPTED)
    append(spark, ADOPTED, [Record(70, "p0")])
    outcome = clean(spark, ADOPTED, ms(NOW))
    night = (NOW - DAY).replace(hour=2, minute=0, second=0)
    lake.run(
        ADOPTED,
        "clean_log",
        now=night,
        run_id=f"scheduled__{night:%Y-%m-%dT%H:%M:%S+00:00}",
        ended=night + timedelta(seconds=9),
        partitions=outcome.partitions,
        topic=outcome.topic,
        rows_removed=outcome.rows_removed,
    )


def a_night(lake: LakeSandbox, night: datetime, number: int) -> None:
    """Each stage of the night, for two topics."""
    run_id = f"scheduled__{night:%Y-%m-%dT%H:%M:%S+00:00}"
    for topic, partitions in ((FLIGHTS, 6), (AUDIT, 1)):
        removed = 4000 - 300 * number if topic == FLIGHTS else 900
        results = {
            p: partition_result(
                log_start_offset=1000 + 150 * p,
                low_watermark=1000 + 100 * p,
                log_end_offset=10_400 + p,
                picked=True,
                reason="dirty ratio 0.61",
                records_before=9000,
                records_after=9000 - removed // partitions,
                bytes_before=900_000,
                bytes_after=700_000,
                superseded=removed // partitions,
                tombstones_kept=40 - number,
                tombstones_removed=number,
            )
            for p in range(partitions)
        }
        lake.run(
            topic,
            "clean_log" if topic == FLIGHTS else "expire_segments",
            now=night,
            run_id=run_id,
            started=night,
            ended=night + timedelta(seconds=14 + number),
            partitions=results,
            topic={"seconds": 14.0},
            rows_removed=removed,
            bytes_removed=removed * 80,
            snapshot_ids=[7_000_000_000_000_000_000 + number],
            summary=summary(partitions, number),
        )


def summary(partitions: int, number: int) -> TopicSummary:
    return TopicSummary(
        cleanup_policy="compact" if partitions > 1 else "delete",
        is_enabled=True,
        partitions=partitions,
        records=60_000 - 2500 * number,
        closed_records=50_000,
        dirty_records=12_000 - 700 * number,
        file_bytes=48_000_000 - 2_400_000 * number + (number % 3) * 3_000_000,
        next_horizon_ms=ms(NOW + 2 * DAY) if partitions > 1 else ms(NOW - 3 * DAY),
        oldest_event_ms=ms(NOW - 20 * DAY),
        waiting=240 - number,
        low_watermark_lag=350,
    )


def failures(lake: LakeSandbox) -> None:
    """A topic whose night failed terminally, and one by hand that a retry can help."""
    night = (NOW - DAY).replace(hour=2, minute=0, second=0)
    lake.run(
        ORDERS,
        "expire_segments",
        now=night,
        run_id=f"scheduled__{night:%Y-%m-%dT%H:%M:%S+00:00}",
        error=ConfigurationError(
            "expected an integer in [-1, 9223372036854775807] for kafka.retention.ms, found "
            "'7 days'. Set it with configure_topic"
        ),
    )
    lake.run(
        ORDERS,
        "ingest_topic",
        dag="ingest_topic",
        now=NOW - timedelta(hours=3),
        run_id="manual__1",
        error=CommitConflictError("expected no other writer, found one. Run the job again"),
        topic={"drift": [{"name": "kafka.retention.ms", "table": None, "broker": "604800000"}]},
        summary=replace(summary(2, 3), drifted_settings=1, next_horizon_ms=None),
    )
