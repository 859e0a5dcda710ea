"""The logs and rounds that Kafka's classes and `ebbtide.log` are compared on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbtide.kafka.batch_header import ABORT, COMMIT
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.compression import Codec
from tests.kafka.oracle import Round
from tests.log.log_files import Segments, data_batch, marker, transactional

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
NOW_MS = T0 + 10 * HOUR_MS
ORDINARY = {"cleanup.policy": "compact", "delete.retention.ms": str(HOUR_MS)}
NEVER_EXPIRES = {"producer.id.expiration.ms": str(2**31 - 1)}
# Of 64 bits.
LARGEST, LEAST = str(2**63 - 1), str(-(2**63))
APART = {"internal.segment.bytes": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log and the rounds it goes through; an idle round is one that is forced."""

    segments: Segments
    rounds: tuple[Round, ...]
    config: Mapping[str, str] = field(default_factory=lambda: ORDINARY)
    log_start_offset: int = 0
    high_watermark: int | None = None  # None: the log end offset


def dirty(now_ms: int = NOW_MS, **options: Any) -> Round:
    return Round(now_ms=now_ms, idle=False, **options)


def idle(now_ms: int, **options: Any) -> Round:
    return Round(now_ms=now_ms, force_idle=True, **options)


def data(offset: int, *records: tuple[str | None, str | None], **fields: Any) -> bytes:
    return data_batch(offset, *records, **{"at_ms": T0 + offset, **fields})


def sent(offset: int, key: str, producer: int = 1, epoch: int = 0) -> bytes:
    return transactional(offset, key, producer=producer, at_ms=T0 + offset, epoch=epoch)


def ended(offset: int, kind: str, producer: int = 1, epoch: int = 0) -> bytes:
    return marker(offset, kind, producer=producer, at_ms=T0 + offset, epoch=epoch)


HORIZON_MS = NOW_MS + HOUR_MS
# A commit marker's key: version 0, type 1.
MARKER_KEY = "\0\0\0\1"
CASES = {
    "the newest record of each key survives, and nothing of the active segment goes": Case(
        segments={
            0: [data(0, ("a", "1"), ("b", "2")), data(2, ("a", "3"))],
            3: [data(3, ("b", "4"), ("c", "5"), ("b", "6"))],
            6: [data(6, ("a", "7"))],
        },
        rounds=(dirty(),),
    ),
    "a gap of offsets at a segment's end stops nothing": Case(
        segments={
            0: [data(0, ("a", "1"), ("b", "2"))],
            10: [data(10, ("a", "3"), ("c", "4"))],
            20: [data(20, ("b", "5"))],
            30: [],
        },
        rounds=(dirty(), idle(NOW_MS + 1)),
    ),
    "a marker's key and a record's key that looks like it are two things": Case(
        segments={
            0: [data(0, (MARKER_KEY, "1")), sent(1, "a"), ended(2, COMMIT)],
            3: [sent(3, MARKER_KEY), ended(4, COMMIT), data(5, ("b", "2"))],
            6: [],
        },
        config=ORDINARY | {"producer.id.expiration.ms": "1"},
        rounds=(dirty(), idle(NOW_MS + 1), idle(HORIZON_MS + 1)),
    ),
    "a keyless record goes; an empty key is a key and an empty value a value": Case(
        segments={0: [data(0, (None, "1"), ("", "2"), ("", ""), (None, "4"))], 4: []},
        rounds=(dirty(),),
    ),
    "a tombstone waits for its horizon, which is set once, and goes at it": Case(
        segments={0: [data(0, ("a", "1"), ("b", "2")), data(2, ("a", None), ("c", "3"))], 4: []},
        rounds=(dirty(), idle(HORIZON_MS - 1), idle(HORIZON_MS)),
    ),
    "another delete.retention.ms leaves a horizon as it is": Case(
        segments={0: [data(0, ("a", None)), data(1, ("b", "1"))], 2: []},
        rounds=(
            dirty(),
            idle(NOW_MS + 1, config={"delete.retention.ms": "1"}),
            idle(NOW_MS + 2),
            idle(HORIZON_MS),
        ),
    ),
    "the last batch of the round stays although it is empty": Case(
        segments={0: [data(0, ("a", "1")), data(1, ("a", None))], 2: []},
        rounds=(dirty(), idle(HORIZON_MS), idle(HORIZON_MS + 1)),
    ),
    "aborted data supersedes nothing and goes at once": Case(
        segments={
            0: [data(0, ("a", "1")), sent(1, "a"), ended(2, ABORT), data(3, ("b", "2"))],
            4: [data(4, ("z", "1"))],
        },
        config=ORDINARY | {"producer.id.expiration.ms": "1"},
        rounds=(dirty(), idle(NOW_MS + 1), idle(NOW_MS + 1 + HOUR_MS), idle(NOW_MS * 2)),
    ),
    "a commit marker outlives its data by a horizon": Case(
        segments={
            0: [sent(0, "a"), ended(1, COMMIT), data(2, ("a", "2")), data(3, ("b", "3"))],
            4: [],
        },
        config=ORDINARY | {"producer.id.expiration.ms": "1"},
        rounds=(dirty(), idle(NOW_MS + 1), idle(NOW_MS + HOUR_MS), idle(NOW_MS + 1 + HOUR_MS)),
    ),
    "a producer's last data batch stays empty, and its marker with it": Case(
        segments={
            0: [sent(0, "a"), ended(1, COMMIT), data(2, ("a", "2")), data(3, ("b", "3"))],
            4: [],
        },
        config=ORDINARY | NEVER_EXPIRES,
        rounds=(dirty(), idle(HORIZON_MS), idle(HORIZON_MS + 1)),
    ),
    "a marker of a new epoch is its producer's last record": Case(
        segments={
            0: [
                *(sent(0, "a"), ended(1, COMMIT, epoch=1)),
                *(sent(2, "a", epoch=1), ended(3, ABORT, epoch=2)),
                data(4, ("a", "2")),
                data(5, ("b", "3")),
            ],
            6: [],
        },
        config=ORDINARY | NEVER_EXPIRES,
        rounds=(dirty(), idle(NOW_MS + 1), idle(HORIZON_MS + 1), idle(HORIZON_MS + 2)),
    ),
    "a producer expires at the very millisecond": Case(
        segments={0: [sent(0, "a"), ended(1, COMMIT), data(2, ("a", "2"), ("b", "3"))], 4: []},
        config=ORDINARY | {"producer.id.expiration.ms": str(HOUR_MS)},
        rounds=(dirty(T0 + HOUR_MS), idle(T0 + 1 + HOUR_MS)),
    ),
    "a committed transaction after an emptied abort marker is not aborted": Case(
        segments={
            0: [sent(0, "a"), ended(1, ABORT)],
            2: [data(2, ("x", "1"), at_ms=NOW_MS * 2), sent(3, "b"), ended(4, COMMIT)],
            5: [],
        },
        config=ORDINARY | NEVER_EXPIRES | APART | {"min.compaction.lag.ms": "1"},
        rounds=(
            dirty(),
            idle(NOW_MS + 1),
            idle(NOW_MS + 1 + HOUR_MS),
            dirty(NOW_MS * 2 + 1),
            idle(NOW_MS * 2 + 2),
        ),
    ),
    "an aborted transaction across segments is aborted in each": Case(
        segments={
            0: [data(0, ("a", "1")), sent(1, "a"), sent(2, "b", producer=2)],
            3: [sent(3, "c"), ended(4, COMMIT, producer=2), sent(5, "d")],
            6: [ended(6, ABORT), data(7, ("e", "1"))],
        },
        rounds=(dirty(), idle(NOW_MS + 1), idle(NOW_MS + 1 + HOUR_MS)),
    ),
    "an open transaction makes its whole segment uncleanable": Case(
        segments={
            0: [data(0, ("a", "1"), ("a", "2"))],
            2: [data(2, ("a", "3"), ("a", "4")), sent(4, "b")],
            5: [data(5, ("a", "5"))],
            6: [],
        },
        rounds=(dirty(),),
    ),
    "min.compaction.lag.ms keeps a segment that is younger by a millisecond": Case(
        segments={
            0: [data(0, ("a", "1"), ("a", "2"), at_ms=NOW_MS - HOUR_MS - 1)],
            2: [data(2, ("a", "3"), ("a", "4"), at_ms=NOW_MS - HOUR_MS)],
            4: [data(4, ("a", "5"), at_ms=T0)],
            5: [],
        },
        config=ORDINARY | {"min.compaction.lag.ms": str(HOUR_MS)},
        rounds=(dirty(), dirty(NOW_MS + 1)),
    ),
    "max.compaction.lag.ms cleans a log that is too clean to be picked": Case(
        segments={0: [data(0, ("a", "1"), ("a", "2"), at_ms=NOW_MS - HOUR_MS)], 2: []},
        config=ORDINARY | {"max.compaction.lag.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "1"},
        rounds=(dirty(NOW_MS + 1), dirty(NOW_MS + 2)),
    ),
    "segments merge while their bytes before the round fit": Case(
        segments={
            0: [data(0, ("a", "1"))],
            1: [data(1, ("a", "2"))],
            2: [],
            3: [data(3, ("b", "3"))],
            4: [data(4, ("c", "4" * 80))],
            5: [data(5, ("d", "5"))],
            6: [],
        },
        config=ORDINARY | {"internal.segment.bytes": str(2 * 70)},
        rounds=(dirty(), idle(NOW_MS + 1)),
    ),
    "LogAppendTime keeps the largest timestamp of a batch that loses records": Case(
        segments={
            0: [
                data(0, ("a", "1"), ("b", "2"), attributes=LOG_APPEND_TIME, max_timestamp_ms=T0),
                data(2, ("b", "3")),
            ],
            3: [],
        },
        rounds=(dirty(), idle(HORIZON_MS)),
    ),
    "a tombstone under LogAppendTime waits by the round's clock": Case(
        segments={
            0: [
                data(0, ("a", "1"), ("b", None), attributes=LOG_APPEND_TIME, max_timestamp_ms=T0),
                data(2, ("c", "3")),
            ],
            3: [],
        },
        rounds=(dirty(), idle(HORIZON_MS - 1), idle(HORIZON_MS)),
    ),
    "a segment whose newest record was superseded expires by what is left": Case(
        segments={
            0: [data(0, ("a", "1")), data(1, ("b", "2"), at_ms=NOW_MS - 1)],
            2: [data(2, ("b", "3"), at_ms=NOW_MS)],
            3: [],
        },
        config=ORDINARY
        | APART
        | {"cleanup.policy": "compact,delete", "retention.ms": str(HOUR_MS)},
        rounds=(dirty(), dirty(NOW_MS + 1, retention=True)),
    ),
    "a compressed batch keeps its codec, an emptied one loses it": Case(
        segments={
            0: [
                data(0, ("a", "1"), ("b", "2"), codec=Codec.GZIP),
                data(2, ("b", "3"), ("c", None), codec=Codec.LZ4),
                data(4, ("c", None), codec=Codec.ZSTD),
            ],
            5: [],
        },
        rounds=(dirty(), idle(HORIZON_MS)),
    ),
    "what lies below the log start offset decides no abort and supersedes nothing": Case(
        segments={
            0: [sent(0, "a"), ended(1, ABORT), sent(2, "b"), ended(3, COMMIT), data(4, ("b", "1"))],
            5: [data(5, ("c", "1"))],
            6: [],
        },
        config=ORDINARY | {"producer.id.expiration.ms": "1"},
        log_start_offset=2,
        rounds=(dirty(), idle(NOW_MS + 1), idle(NOW_MS * 2)),
    ),
    "retention takes a prefix: log start offset, size, time; a future time blocks it": Case(
        segments={
            0: [data(0, ("a", "1"))],
            1: [data(1, ("b", "2"))],
            2: [data(2, ("c", "3"))],
            3: [data(3, ("d", "4"), at_ms=T0)],
            4: [data(4, ("e", "5"), at_ms=NOW_MS)],
            5: [data(5, ("f", "6"), at_ms=T0)],
        },
        config={"cleanup.policy": "delete", "retention.ms": str(HOUR_MS)},
        rounds=(
            dirty(T0, delete_records=1, retention=True, config={"retention.bytes": "346"}),
            dirty(T0, retention=True, config={"retention.bytes": "277"}),
            dirty(T0, retention=True, config={"retention.bytes": "276"}),
            dirty(T0 + 2 + HOUR_MS, retention=True, config={"retention.bytes": "-1"}),
            dirty(T0 + 3 + HOUR_MS, retention=True),
        ),
    ),
    "retention stops at the high watermark, within a segment and at its end": Case(
        segments={
            0: [data(0, ("a", "1"), ("b", "2"))],
            2: [data(2, ("c", "3"), ("d", "4"))],
            4: [data(4, ("e", "5"))],
        },
        config={"cleanup.policy": "delete", "retention.bytes": "0"},
        rounds=(
            dirty(retention=True),
            dirty(NOW_MS + 1, retention=True, config={"retention.ms": "0"}),
        ),
        high_watermark=3,
    ),
    "the active segment stays while its end lies above the high watermark": Case(
        segments={0: [data(0, ("a", "1"))], 1: [data(1, ("b", "2"), ("c", "3"))]},
        config={"cleanup.policy": "delete", "retention.ms": "0", "retention.bytes": "0"},
        rounds=(dirty(retention=True), dirty(NOW_MS + 1, retention=True)),
        high_watermark=1,
    ),
    "size counts what compaction has left": Case(
        segments={
            0: [data(0, ("a", "1" * 50)), data(1, ("b", "2"))],
            2: [data(2, ("a", "3"))],
            3: [data(3, ("c", "4"))],
            4: [],
        },
        config=ORDINARY | APART | {"cleanup.policy": "compact,delete"},
        rounds=(
            dirty(retention=True, config={"retention.bytes": "139"}),
            dirty(NOW_MS + 1, retention=True, config={"retention.bytes": "138"}),
            dirty(NOW_MS + 2, retention=True, config={"retention.bytes": "70"}),
            dirty(NOW_MS + 3, retention=True, config={"retention.bytes": "69"}),
        ),
    ),
    "an open transaction holds the cleaner back also when its first segment has gone": Case(
        segments={
            0: [sent(0, "a")],
            1: [data(1, ("a", "1"), ("a", "2"))],
            3: [sent(3, "b")],
            4: [],
        },
        rounds=(dirty(delete_records=1, retention=True), dirty(NOW_MS + 1)),
    ),
    "retention of the active segment rolls an empty one": Case(
        segments={0: [data(0, ("a", "1"))], 1: [data(1, ("b", "2"))]},
        config={"cleanup.policy": "delete", "retention.ms": "0"},
        rounds=(dirty(retention=True), dirty(NOW_MS * 2, retention=True)),
    ),
    "compact,delete expires a tombstone that still waits": Case(
        segments={0: [data(0, ("a", "1"), ("a", None))], 2: [data(2, ("b", "1"), at_ms=NOW_MS)]},
        config=ORDINARY | {"cleanup.policy": "compact,delete", "retention.ms": str(HOUR_MS)},
        rounds=(dirty(retention=True),),
    ),
    "limits at the edge of 64 bits remove nothing": Case(
        segments={
            0: [data(0, ("a", "1"))],
            1: [data(1, ("b", "2"))],
            2: [data(2, ("c", "3"))],
        },
        config={"cleanup.policy": "delete", "retention.ms": LARGEST, "retention.bytes": LARGEST},
        rounds=(
            dirty(retention=True),
            dirty(NOW_MS + 1, retention=True, config={"retention.bytes": LEAST}),
            dirty(NOW_MS + 2, retention=True, config={"retention.ms": "-1"}),
            dirty(NOW_MS + 3, retention=True, config={"retention.bytes": "0"}),
        ),
    ),
    "a time at the edge of 64 bits is never past a limit": Case(
        segments={
            0: [data(0, ("a", "1"))],
            1: [data(1, ("b", "2"), at_ms=int(LARGEST))],
            2: [data(2, ("c", "3"))],
            3: [],
        },
        config={"cleanup.policy": "delete", "retention.ms": LARGEST},
        rounds=(
            dirty(retention=True),
            dirty(NOW_MS + 1, retention=True, config={"retention.ms": "0"}),
            dirty(int(LARGEST) - 1, retention=True),
        ),
    ),
    "lags at the edge of 64 bits keep a segment for good, or force no round": Case(
        segments={0: [data(0, ("a", "1"), ("a", "2"))], 2: [data(2, ("a", "3"))], 3: []},
        config=ORDINARY | {"min.compaction.lag.ms": LARGEST, "min.cleanable.dirty.ratio": "1"},
        rounds=(
            dirty(),
            dirty(NOW_MS + 1, config={"min.compaction.lag.ms": "0"}),
            dirty(NOW_MS + 2, config={"max.compaction.lag.ms": LARGEST}),
            dirty(NOW_MS + 3, config={"max.compaction.lag.ms": "1"}),
        ),
    ),
    "a time at the edge of 64 bits is younger than any lag": Case(
        segments={
            0: [data(0, ("a", "1"), ("a", "2"))],
            2: [data(2, ("b", "3"), ("b", "4"), at_ms=int(LARGEST) - 1)],
            4: [],
        },
        config=ORDINARY | {"min.compaction.lag.ms": "1"},
        rounds=(dirty(), dirty(NOW_MS + 1, config={"max.compaction.lag.ms": "1"})),
    ),
}
