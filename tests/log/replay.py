"""Described logs through Kafka's own classes and `ebbtide.log`, compared after each round."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ebbtide.errors import NotCoveredError
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.transactions import LastRecord
from ebbtide.numbers import MAX_LONG
from ebbtide.settings.config import TopicConfig, parse_config
from ebbtide.state.logical_segments import Cleanable
from tests.kafka.oracle import (
    GrownSegment,
    LogState,
    OracleError,
    OracleResult,
    Round,
    SourceLog,
    try_oracle,
)
from tests.kafka.scenarios import (
    Partition,
    Topic,
    encode_segment,
    header_of,
    records_of,
    write_source,
)
from tests.log.comparison import (
    batches_of,
    described,
    described_by_kafka,
    differing_batches,
)
from tests.log.log_files import Grown, empty_log, grow
from tests.log.plain_cleaner import (
    Log,
    clean,
    in_segments,
    is_idle_round_due,
    offer,
    producers_of,
    retain,
    stable_offset,
    truncate,
)

MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Replay:
    """How one log's comparison went; the first round that differs ends it."""

    differences: list[str] = field(default_factory=list)
    picked: list[str] = field(default_factory=list)
    markers_kept_longer: int = 0
    estimates: list[tuple[int, int]] = field(default_factory=list)  # estimated, Kafka's bytes
    is_refused: bool = False  # by Kafka and by us


@dataclass(frozen=True, slots=True)
class Subject:
    """One partition of a topic."""

    topic: Topic
    partition: Partition

    def source(self, directory: Path) -> SourceLog:
        """The request to the oracle, with the first segment files written to `directory`."""
        first, *later = self.partition.grown
        return SourceLog(
            directory=write_source(directory, first),
            config=self.topic.config,
            rounds=[
                Round(
                    now_ms=a_round.now_ms,
                    config=a_round.config,
                    delete_records=self.partition.delete_records[number],
                    retention=a_round.retention,
                    grown=[
                        GrownSegment(s.base_offset, s.modified_ms, encode_segment(s))
                        for s in (later[number - 1] if number else ())
                    ],
                )
                for number, a_round in enumerate(self.topic.rounds)
            ],
            modified_ms={segment.base_offset: segment.modified_ms for segment in first},
        )

    def grown(self, number: int) -> list[Grown]:
        """What is new in a round."""
        return [
            (
                segment.base_offset,
                segment.modified_ms,
                [(header_of(batch), records_of(batch)) for batch in segment.batches],
            )
            for segment in self.partition.grown[number]
        ]


def replay_topics(topics: Sequence[Topic], jars_dir: Path) -> Iterator[list[Replay]]:
    """For each topic, how each of its partitions compares; one JVM does them all."""
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="replay-", dir=memory) as scratch:
        groups = [[Subject(topic, p) for p in topic.partitions] for topic in topics]
        subjects = [subject for group in groups for subject in group]
        sources = [s.source(Path(scratch, str(i), "t-0")) for i, s in enumerate(subjects)]
        results = try_oracle(sources, jars_dir)
        for group in groups:
            yield [replay(subject, next(results)) for subject in group]


def replay(subject: Subject, result: OracleResult | OracleError) -> Replay:
    """Compare one log after each of its rounds."""
    outcome = Replay()
    try:
        for lines in _differences(subject, result, outcome):
            if lines:
                outcome.differences = lines
                return outcome
    except NotCoveredError as refusal:
        outcome.is_refused = isinstance(result, OracleError)
        if outcome.is_refused:
            return outcome
        outcome.differences = [f"refused here only: {refusal}"]
    except Exception as error:  # one log must not end the comparison of thousands
        outcome.differences = [f"failed here: {error!r}"]
    if isinstance(result, OracleError):
        outcome.differences.append(str(result))
    return outcome


def _differences(
    subject: Subject, result: OracleResult | OracleError, outcome: Replay
) -> Iterator[list[str]]:
    """The differences before any round, then after each."""
    first = subject.grown(0)
    log = grow(empty_log(first[0][0]), first)
    if isinstance(result, OracleError):
        for number in range(len(subject.topic.rounds)):
            log = Turn(subject, number, log).end(None).log
        return
    state = result.initial
    yield described(log).differences(described_by_kafka(state, log))
    for number, after in enumerate(result.rounds):
        turn = Turn(subject, number, replace(log, measured=tuple(batches_of(state.batches))))
        end = turn.end(after)
        lines = end.differences(after)
        if lines:
            other = turn.without_hidden(state).end(after)
            is_longer = keeps_markers_longer(end.cleaned or end.log, after)
            if is_longer and not other.differences(after):
                outcome.markers_kept_longer += 1
                end, lines = other, []
        outcome.picked.append(after.picked)
        outcome.estimates += end.estimates
        log, state = end.log, after
        yield [f"round {number}: {line}" for line in lines]


def keeps_markers_longer(cleaned: Log, state: LogState) -> bool:
    """Whether cleaning lets a marker go later here than Kafka's, and none earlier.

    Where DeleteRecords hides a batch, its records are gone here while Kafka cleans on; so its
    transaction's marker may stay longer than Kafka's, never shorter.
    """
    start = cleaned.state.log_start_offset
    kafkas = batches_of(state.cleaned_batches or state.batches)
    ours, theirs = (
        {b.base_offset: _end_of(b) for b in batches if b.is_control and b.base_offset >= start}
        for batches in (in_segments(cleaned), kafkas)
    )
    waits = [(ours.get(base, 0), theirs.get(base, 0)) for base in ours.keys() | theirs.keys()]
    return any(mine > other for mine, other in waits) and all(m >= other for m, other in waits)


def _end_of(marker: Batch) -> int:
    """When the marker may go; 0 where it is empty, and no time that comes without a horizon."""
    if marker.record_count == 0:
        return 0
    return MAX_LONG if marker.delete_horizon_ms is None else marker.delete_horizon_ms


@dataclass(frozen=True, slots=True)
class End:
    """A log after a round, and how it came to be so."""

    log: Log
    picked: str
    bound: int
    producers: Mapping[int, LastRecord]
    estimates: list[tuple[int, int]]
    lines: list[str]
    cleaned: Log | None = None  # before retention

    def differences(self, state: LogState) -> list[str]:
        """What is not as Kafka has it."""
        lines = list(self.lines)
        if self.picked != state.picked:
            lines.append(f"picked: {self.picked} != {state.picked}")
        if self.bound != state.first_uncleanable_offset:
            lines.append(f"bound: {self.bound} != {state.first_uncleanable_offset}")
        stable = stable_offset(self.log)
        if stable != state.last_stable_offset:
            lines.append(f"last_stable_offset: {stable} != {state.last_stable_offset}")
        start = state.log_start_offset
        first_dirty = max(self.log.state.first_dirty_offset, start)
        if first_dirty != max(state.first_dirty_offset, start):
            lines.append(f"first_dirty_offset: {first_dirty} != {state.first_dirty_offset}")
        ours = {p: (r.producer_epoch, r.last_data_offset) for p, r in self.producers.items()}
        theirs = {p.producer_id: (p.producer_epoch, p.last_data_offset) for p in state.producers}
        if ours != theirs:
            lines.append(f"producers: {ours} != {theirs}")
        return lines + described(self.log).differences(described_by_kafka(state, self.log))


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one log, from the state before it."""

    subject: Subject
    number: int
    before: Log

    def end(self, state: LogState | None) -> End:
        """The log after the round; sizes that only a codec knows are Kafka's, if `state` is."""
        a_round = self.subject.topic.rounds[self.number]
        config = config_of(self.subject.topic.config_at(self.number))
        asked = log = self._asked()
        offered = offer(log, config, a_round.now_ms)
        picked = self._picked(log, offered, config)
        if picked != "none":
            log = clean(log, config, a_round.now_ms, is_idle=picked == "idle")
        estimates: list[tuple[int, int]] = []
        lines: list[str] = []
        if state is not None:
            theirs = state.cleaned_batches if a_round.retention else state.batches
            log, estimates = measured(log, batches_of(theirs), asked)
            lines = [f"cleaned {line}" for line in differing_batches(log, batches_of(theirs))]
        cleaned = log
        if a_round.retention:
            log = retain(log, config, a_round.now_ms)
        producers = producers_of(log, config, a_round.now_ms)
        bound = offered.first_uncleanable_offset
        return End(log, picked, bound, producers, estimates, lines, cleaned)

    def without_hidden(self, state: LogState) -> Turn:
        """The same turn with no more hidden data than Kafka had before the round.

        Markers stay: they decide transactions for a batch that Kafka keeps empty.
        """
        start, left = state.log_start_offset, {batch.base_offset for batch in state.batches}
        first_segment = state.segments[0].base_offset
        batches = tuple(
            batch
            for batch in self.before.batches
            if batch.is_control
            or not first_segment <= batch.base_offset < start
            or batch.base_offset in left
        )
        return replace(self, before=replace(self.before, batches=batches))

    def _asked(self) -> Log:
        """The log as it has grown, after DeleteRecords."""
        log = self.before
        if self.number:
            log = grow(log, self.subject.grown(self.number))
            if log.measured is not None:
                new = log.batches[len(self.before.batches) :]
                log = replace(log, measured=(*log.measured, *new))
        offset = self.subject.partition.delete_records[self.number]
        return log if offset is None else truncate(log, offset)

    def _picked(self, log: Log, offered: Cleanable, config: TopicConfig) -> str:
        now_ms = self.subject.topic.rounds[self.number].now_ms
        if not config.is_compacted:
            return "none"
        if offered.is_picked(config.min_cleanable_dirty_ratio):
            return "dirty"
        return "idle" if is_idle_round_due(log, offered, config, now_ms) else "none"


def measured(log: Log, theirs: Sequence[Batch], before: Log) -> tuple[Log, list[tuple[int, int]]]:
    """The log with Kafka's sizes of the compressed batches that the round wrote anew.

    Beside it, each size as it was estimated and as it is.
    """
    known = {batch.base_offset: batch for batch in before.batches}
    sizes = {batch.base_offset: batch.size_bytes for batch in theirs}
    estimates = []
    batches = list(log.batches)
    for i, batch in enumerate(batches):
        is_rewritten = batch != known[batch.base_offset] and batch.record_count > 0
        size_bytes = sizes.get(batch.written_base_offset)
        if batch.is_compressed and is_rewritten and size_bytes is not None:
            estimates.append((batch.size_bytes, size_bytes))
            batches[i] = batch._replace(size_bytes=size_bytes)
    return replace(log, batches=tuple(batches), measured=tuple(theirs)), estimates


def config_of(texts: Mapping[str, str]) -> TopicConfig:
    """A topic's configuration, with segments of any size."""
    texts = dict(texts)
    segment_bytes = int(texts.pop("internal.segment.bytes", 2**30))
    config = parse_config({f"kafka.{name}": value for name, value in texts.items()})
    return replace(config, segment_bytes=segment_bytes, max_delete_ratio=1.0)
