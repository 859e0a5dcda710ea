from __future__ import annotations

import re
from typing import Any

import pytest

from ebbtide.errors import ForeignLogError, OffsetGapError
from ebbtide.kafka.continuation import (
    SourceBatch,
    TableEnd,
    check_boundary,
    check_continuation,
    check_no_gap,
    check_not_appended,
    check_not_lost,
)
from ebbtide.records.attributes import DELETE_HORIZON

HELD = SourceBatch(
    base_offset=10, last_offset=14, leader_epoch=3, attributes=0, record_count=5, crc=0xABC
)
BEFORE = HELD._replace(base_offset=0, last_offset=9)
AFTER = HELD._replace(base_offset=15, last_offset=19)
GZIP, ZSTD = 1, 4


def check(*source: SourceBatch, held: SourceBatch | None = HELD, **options: Any) -> None:
    """Whether these batches continue a table that ends at 15."""
    ordinary = {"source_start": 0, "is_compacted": False}
    check_continuation("log/t-0", TableEnd(15, held), source, **{**ordinary, **options})


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param([BEFORE, HELD], {}, id="the same log"),
        pytest.param([BEFORE, HELD, AFTER], {}, id="the same log, longer"),
        pytest.param([AFTER], {"held": None}, id="a table without batches"),
        pytest.param([AFTER], {"source_start": 15}, id="a source that starts behind the table"),
        pytest.param([], {"source_start": 15}, id="a source with nothing but its start"),
        pytest.param(
            [BEFORE, AFTER], {"is_compacted": True}, id="a compacted source without the batch"
        ),
        pytest.param(
            [HELD._replace(record_count=2, crc=1)],
            {"is_compacted": True},
            id="cleaned there: fewer records",
        ),
        pytest.param(
            [HELD._replace(attributes=DELETE_HORIZON, crc=1)],
            {"is_compacted": True},
            id="cleaned there: a horizon",
        ),
        pytest.param([HELD], {"source_end": 30}, id="a log may end after its last batch"),
        pytest.param(
            [HELD._replace(base_offset=12, leader_epoch=-1)],
            {"is_compacted": True},
            id="a message of an old format, which cleaning may have put elsewhere",
        ),
        pytest.param([HELD], {"held": HELD._replace(crc=None)}, id="cleaned here"),
        pytest.param(
            [HELD._replace(leader_epoch=-1)],
            {"held": HELD._replace(leader_epoch=-1, last_offset=12, record_count=2, crc=None)},
            id="converted here from an old format, which ends it with its last record",
        ),
        pytest.param(
            [HELD._replace(attributes=0, record_count=0, crc=1)],
            {"held": HELD._replace(attributes=ZSTD), "is_compacted": True},
            id="emptied there, without its codec",
        ),
    ],
)
def test_what_continues_the_log(source: list[SourceBatch], options: dict[str, Any]) -> None:
    check(*source, **options)


TRUNCATED = (
    "expected log/t-0 to reach offset 15, the table's log end offset, found its end at {}: the "
    "source was truncated, or is another log. Ingest it under another cluster name, or drop the "
    "topic's tables and ingest it again"
)
FOREIGN = (
    "expected batch [10, 14] of leader epoch 3, CRC 0x00000abc, the table's last, in log/t-0, "
    "found {}: the source was truncated and written again, or is another log. Ingest it under "
    "another cluster name, or drop the topic's tables and ingest it again"
)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        pytest.param([BEFORE], {}, TRUNCATED.format(10), id="it ends before the table does"),
        pytest.param([], {}, TRUNCATED.format(0), id="it holds nothing"),
        pytest.param(
            [BEFORE], {"is_compacted": True}, TRUNCATED.format(10), id="also if it is compacted"
        ),
        pytest.param(
            [BEFORE, AFTER], {}, FOREIGN.format("none there"), id="the last batch is not there"
        ),
        pytest.param(
            [HELD._replace(crc=1)],
            {},
            FOREIGN.format("[10, 14] of leader epoch 3, CRC 0x00000001"),
            id="its CRC differs",
        ),
        pytest.param(
            [HELD._replace(crc=1)],
            {"is_compacted": True},
            FOREIGN.format("[10, 14] of leader epoch 3, CRC 0x00000001"),
            id="its CRC differs in a compacted log",
        ),
        pytest.param(
            [HELD._replace(attributes=GZIP, crc=1)],
            {"is_compacted": True},
            FOREIGN.format("[10, 14] of leader epoch 3, CRC 0x00000001"),
            id="its codec differs, which cleaning does not change",
        ),
        pytest.param(
            [HELD._replace(record_count=2, crc=1)],
            {},
            FOREIGN.format("[10, 14] of leader epoch 3, CRC 0x00000001"),
            id="it holds fewer records in a log that nobody cleans",
        ),
        pytest.param(
            [HELD],
            {"source_end": 14},
            TRUNCATED.format(14),
            id="its end is said to lie before the table's",
        ),
        *(
            pytest.param(
                [HELD._replace(base_offset=base, last_offset=last), AFTER],
                {"is_compacted": True},
                FOREIGN.format(f"[{base}, {last}] of leader epoch 3, CRC 0x00000abc"),
                id=f"[{base}, {last}] shares offsets with [10, 14]",
            )
            for base, last in [(8, 10), (8, 14), (11, 13), (14, 20), (8, 20)]
        ),
        pytest.param(
            [HELD._replace(leader_epoch=4)],
            {},
            FOREIGN.format("[10, 14] of leader epoch 4, CRC 0x00000abc"),
            id="its leader epoch differs",
        ),
        pytest.param(
            [HELD._replace(last_offset=15)],
            {},
            FOREIGN.format("[10, 15] of leader epoch 3, CRC 0x00000abc"),
            id="its end differs",
        ),
    ],
)
def test_what_is_another_log(
    source: list[SourceBatch], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ForeignLogError, match=f"^{re.escape(message)}$"):
        check(*source, **options)


def test_a_batch_that_was_cleaned_here_must_still_end_where_it_ended() -> None:
    cleaned = HELD._replace(crc=None)
    with pytest.raises(ForeignLogError, match=r"leader epoch 3, rewritten, the table's last"):
        check(HELD._replace(last_offset=15), held=cleaned)


@pytest.mark.parametrize(
    ("offset", "is_allowed"),
    [
        pytest.param(15, False, id="no gap"),
        pytest.param(14, False, id="an overlap is not its business"),
        pytest.param(18, True, id="a gap that is allowed"),
    ],
)
def test_offsets_that_may_follow(offset: int, is_allowed: bool) -> None:
    check_no_gap("log/t-0", 15, offset, is_allowed=is_allowed)


def test_a_batch_astride_the_tables_end_is_another_logs() -> None:
    check_boundary("log/t-0", 15, [])
    with pytest.raises(ForeignLogError) as refused:
        check_boundary("log/t-0", 15, [{"base_offset": 12, "last_offset": 17}])
    assert str(refused.value) == (
        "expected a batch of log/t-0 to begin at offset 15, the table's log end offset, found "
        "batch [12, 17]: the source is another log. Ingest it under another cluster name, or drop "
        "the topic's tables and ingest it again"
    )


def test_offsets_that_the_source_removed_before_they_were_ingested_are_lost() -> None:
    check_not_lost("log/t-0", 15, 15, is_accepted=False)
    check_not_lost("log/t-0", 15, 18, is_accepted=True)
    with pytest.raises(OffsetGapError) as refused:
        check_not_lost("log/t-0", 15, 18, is_accepted=False)
    assert str(refused.value) == (
        "expected offset 15, the table's log end offset, in log/t-0, found its start at 18: 3 "
        "offsets were removed there before they were ingested, and are lost. To continue without "
        "them, run once with --accept-gap"
    )


def test_a_gap_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(OffsetGapError) as refused:
        check_no_gap("log/t-0", 15, 18, is_allowed=False)
    assert str(refused.value) == (
        "expected offset 15 in log/t-0, found 18: 3 offsets are missing, and cleanup.policy has "
        "no compact. If the topic is compacted, set kafka.cleanup.policy: with --set of this job "
        "for a new topic, else with configure_topic. To accept the gap, run once with "
        "--accept-gap"
    )


def test_offsets_that_were_appended_directly_are_taken_from_no_source() -> None:
    check_not_appended("t-0", 100, source_end=100)
    with pytest.raises(ForeignLogError, match=r"before offset 100, .*found its end at 101"):
        check_not_appended("t-0", 100, source_end=101)
