"""Random topics through the Spark stages and through Kafka's own classes, round by round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pyspark.sql import SparkSession

from ebbtide.columns.rewritten_batches import RowChanges, changes_of
from ebbtide.iceberg.batch_rows import prepare_changes
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.kafka.batch_header import Batch
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState
from tests.kafka.oracle import LogState, OracleError, OracleResult, try_oracle
from tests.kafka.scenarios import Topic, source_segments, write_source
from tests.log.comparison import batches_of, described, is_astride
from tests.log.log_files import empty_log, grow
from tests.log.plain_cleaner import Log, producers_of
from tests.log.proof import Compared
from tests.log.replay import End, Subject, Turn, config_of, keeps_markers_longer, replay
from tests.nights.random_holds import RandomHolds
from tests.tables.counted import assert_counted
from tests.tables.headers import read_headers
from tests.tables.nights import expire, ingest, mark
from tests.tables.table_log import logs_of_topic, producer_fields

TOPIC = "t"


@dataclass
class Tally(Compared):
    """What a topic's comparison showed; the first round of a log that differs ends it.

    A log on which the plain rules differ from Kafka does not come to the tables.
    """

    plain_differences: dict[int, list[str]] = field(default_factory=dict)  # by partition
    differences: dict[int, list[str]] = field(default_factory=dict)  # by partition
    lost: list[str] = field(default_factory=list)  # what a hold covers and nobody has any more
    held: int = 0  # records that random holds cover, and those of them that left the log
    kept: int = 0

    def add(self, other: Self) -> None:
        """Count the other's logs too; its differences get numbers after these."""
        offset = self.logs
        super().add(other)
        self.plain_differences |= {
            offset + p: found for p, found in other.plain_differences.items()
        }
        self.lost += other.lost
        self.held += other.held
        self.kept += other.kept
        self.differences |= {offset + p: lines for p, lines in other.differences.items()}

    @property
    def is_proof(self) -> bool:
        """Whether Kafka, the plain rules and the tables agree, on enough."""
        return not (self.differences or self.plain_differences or self.lost or self.gaps())

    def __str__(self) -> str:
        rounds = ", ".join(f"{count} {picked}" for picked, count in self.picked.most_common())
        return (
            f"{self.logs} logs, {self.picked.total()} rounds ({rounds}): {len(self.differences)} "
            f"differ, {len(self.plain_differences)} by the plain rules, "
            f"{self.markers_kept_longer} keep a marker longer, {self.refused} refused, "
            f"{self.held} records held, {self.kept} of them kept, {len(self.lost)} lost"
        )


@dataclass(slots=True)
class Expected:
    """One partition's next state by Kafka, and by the plain rules beside it.

    Where DeleteRecords hides a batch, a marker may stay longer than Kafka's; from there on the
    plain rules, which made the same choice, say what the tables should hold.
    """

    subject: Subject
    result: OracleResult
    log: Log
    state: LogState
    is_exception: bool = False

    @classmethod
    def of(cls, subject: Subject, result: OracleResult) -> Expected:
        """Before any round."""
        first = subject.grown(0)
        return cls(subject, result, grow(empty_log(first[0][0]), first), result.initial)

    def advance(self, number: int) -> None:
        """Go through the next round."""
        after = self.result.rounds[number]
        measured = None if self.is_exception else tuple(batches_of(self.state.batches))
        turn = Turn(self.subject, number, replace(self.log, measured=measured))
        end = turn.end(after)
        if not self.is_exception and end.differences(after):
            other = turn.without_hidden(self.state).end(after)
            is_longer = keeps_markers_longer(end.cleaned or end.log, after)
            self.is_exception = is_longer and not other.differences(after)
        self.log, self.state = end.log, after


def replay_topic(
    spark: SparkSession, topic: Topic, home: Path, jars_dir: Path, *, held_by: int | None = None
) -> Tally:
    """Compare each partition of a topic after each round; its cluster is named after `home`.

    With the seed `held_by` random holds lie on the topic: the log must be the same, and what they
    cover must be in it or kept.
    """
    subjects = dict(enumerate(Subject(topic, partition) for partition in topic.partitions))
    sources = [subject.source(home / "kafka" / f"{TOPIC}-{p}") for p, subject in subjects.items()]
    tally = Tally(logs=len(subjects))
    expected = expect(subjects, dict(enumerate(try_oracle(sources, jars_dir))), tally)
    name = TopicName(home.name, TOPIC)
    held = None if held_by is None else RandomHolds.make(spark, name, held_by, list(expected))
    for number in range(len(topic.rounds)):
        picked = _run_round(spark, name, topic, number, home, expected, held)
        logs, of_producers = logs_of_topic(spark, name), producer_fields(spark, name)
        for partition, of_partition in expected.items():
            at = (number, of_partition, picked.get(partition))
            _compare(partition, (logs[partition], of_producers[partition]), at, tally)
    if held is not None:
        tally.lost = held.lost(spark)
        tally.held += held.covered
        tally.kept += held.kept
    shutil.rmtree(home)
    return tally


def expect(
    subjects: Mapping[int, Subject],
    results: Mapping[int, OracleResult | OracleError],
    tally: Tally,
) -> dict[int, Expected]:
    """What the tables are compared with, by partition; the tally counts the other logs."""
    expected: dict[int, Expected] = {}
    for partition, result in results.items():
        outcome = replay(subjects[partition], result)
        if outcome.differences:
            tally.plain_differences[partition] = outcome.differences
        elif isinstance(result, OracleError):
            tally.refused += 1
        else:
            expected[partition] = Expected.of(subjects[partition], result)
    return expected


def _run_round(
    spark: SparkSession,
    name: TopicName,
    topic: Topic,
    number: int,
    home: Path,
    expected: Mapping[int, Expected],
    held: RandomHolds | None,
) -> dict[int, str]:
    """Ingest what has grown, then a night at the round's time; how each partition was picked."""
    a_round = topic.rounds[number]
    grow_source(home / "log", topic, number, expected)
    ingest(spark, str(name), home / "log", a_round.now_ms, accept_gap=True)
    if held is not None:
        held.note_ingested(spark)
    configure(spark, name, topic.config_at(number))
    mark(spark, str(name))
    requested = {
        p: offset
        for p in expected
        if (offset := topic.partitions[p].delete_records[number]) is not None
    }
    if requested:
        outcome = execute_delete(plan_delete(load(spark, name), requested, a_round.now_ms))
        if outcome.error is not None:
            raise outcome.error
    plan = plan_clean(load(spark, name), a_round.now_ms)
    execute_clean(plan)
    for of_partition in expected.values():
        of_partition.advance(number)
    _set_sizes(spark, name, expected, is_retained=a_round.retention)
    if a_round.retention:
        expire(spark, str(name), a_round.now_ms)
    if number % 2:  # each second round meets files as ingest and rounds left them
        merge_segments(load(spark, name), at_least=2)
    assert_counted(spark, name)
    parts = plan.round.partitions if plan.round is not None else {}
    return {p: "idle" if part.is_idle else "dirty" for p, part in parts.items()}


def grow_source(directory: Path, topic: Topic, number: int, partitions: Iterable[int]) -> None:
    """The broker's directory by this round."""
    directory.mkdir(parents=True, exist_ok=True)
    for partition in partitions:
        segments = source_segments(topic.partitions[partition], number)
        write_source(directory / f"{TOPIC}-{partition}", segments)
    manifest = {"files": {}, "topics": {TOPIC: {"config": dict(topic.config_at(number))}}}
    (directory / "ebbtide-manifest.json").write_text(json.dumps(manifest))


def configure(spark: SparkSession, name: TopicName, config: Mapping[str, str]) -> None:
    settings = ", ".join(f"'kafka.{key}' = '{value}'" for key, value in config.items())
    limits = "'ebbtide.max.delete.ratio' = '1'"
    spark.sql(f"ALTER TABLE {name.records_table} SET TBLPROPERTIES ({settings}, {limits})")


def _set_sizes(
    spark: SparkSession, name: TopicName, expected: Mapping[int, Expected], *, is_retained: bool
) -> None:
    """Give batches what only Kafka knows of them: what a codec makes of one, what is hidden."""
    changes = []
    states = load(spark, name).partitions
    for partition, headers in read_headers(spark, name.batches_table, expected).items():
        state = expected[partition].state
        theirs = batches_of(state.cleaned_batches if is_retained else state.batches)
        segments, newest_ms = headers.column("segment"), headers.column("max_event_time_ms")
        for batch, segment, event_ms in zip(headers.batches(), segments, newest_ms, strict=True):
            known = _known(batch, theirs, states[partition])
            if known != batch:
                rows = [(batch, known, int(event_ms))]
                changes.append(RowChanges.of(partition, int(segment), changes_of(rows)))
    if changes:
        prepare_changes(spark, name.batches_table, RowChanges.together(changes), {})()


def _known(batch: Batch, theirs: Sequence[Batch], state: PartitionState) -> Batch:
    """The batch as Kafka measures it.

    Below the log start offset Kafka cleans on, where ours is hidden and stays as it was.
    """
    first_segment = state.first_segment
    if first_segment <= batch.base_offset < state.log_start_offset:
        left = [b for b in theirs if batch.base_offset <= b.base_offset < batch.next_offset]
        return batch._replace(
            size_bytes=sum(b.size_bytes for b in left),
            max_timestamp_ms=max((b.max_timestamp_ms for b in left), default=-1),
            producer_timestamp_ms=batch.last_append_ms,
        )
    sizes = {b.base_offset: b.size_bytes for b in theirs if batch.is_compressed}
    return batch._replace(size_bytes=sizes.get(batch.written_base_offset, batch.size_bytes))


def _compare(
    partition: int,
    held: tuple[Log, Mapping[int, tuple[int, int]]],
    at: tuple[int, Expected, str | None],
    tally: Tally,
) -> None:
    if partition in tally.differences:
        return
    log, of_producers = held
    number, expected, picked = at
    lines = list(_differences(log, number, expected, picked))
    lines += _producer_differences(of_producers, expected, log)
    tally.picked[picked or "none"] += 1
    if expected.is_exception:
        tally.markers_kept_longer += 1
    if lines:
        tally.differences[partition] = [f"round {number}: {line}" for line in lines]


def _producer_differences(
    ours: Mapping[int, tuple[int, int]], expected: Expected, log: Log
) -> Iterator[str]:
    """Base sequence and leader epoch of the batches that both have.

    Kafka may have more of them below the log start offset, and where a marker is kept longer.
    """
    for batch in expected.state.batches:
        offset, theirs = batch.base_offset, (batch.base_sequence, batch.leader_epoch)
        mine = ours.get(offset)
        may_lack = expected.is_exception or offset < log.state.log_start_offset
        is_absent = mine is None and may_lack
        if mine != theirs and not is_absent and not is_astride(offset, log):
            yield f"batch {offset}: sequence and leader epoch {mine} != {theirs}"


def _differences(log: Log, number: int, expected: Expected, picked: str | None) -> Iterator[str]:
    topic, state = expected.subject.topic, expected.state
    config = config_of(topic.config_at(number))
    producers = producers_of(log, config, topic.rounds[number].now_ms)
    if expected.is_exception:
        yield from described(log).differences(described(expected.log))
    else:
        end = End(log, picked or "none", state.first_uncleanable_offset, producers, [], [])
        yield from end.differences(state)
