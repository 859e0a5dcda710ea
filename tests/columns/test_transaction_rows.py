"""Transactions followed segment by segment, against a reader of the whole log."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.headers import together
from ebbtide.columns.rewritten_batches import ORDINARY
from ebbtide.columns.segment_cleaning import judge_headers
from ebbtide.columns.transaction_rows import outline_transactions
from ebbtide.kafka.batch_header import COMMIT
from ebbtide.kafka.compaction import Round, judge
from ebbtide.kafka.transactions import OpenTransactions, last_records, transactions_around
from ebbtide.numbers import MAX_OFFSET
from tests.columns.test_header_columns import headers_of
from tests.columns.test_log_headers import CUTS, LOGS, TRANSACTIONS, batches_of
from tests.log.builders import T0, ended, sent


@given(LOGS | TRANSACTIONS, CUTS, st.just(0) | st.integers(0, 80), st.integers(20, 90), st.data())
def test_each_segment_judged_alone_gets_the_verdicts_of_the_whole_log(
    kinds: list[tuple[str, int, int]],
    cuts: set[int],
    log_start: int,
    bound: int,
    draw: st.DataObject,
) -> None:
    log = batches_of(kinds)
    starts = [0, *sorted(cut for cut in cuts if cut)]
    this_round = Round(
        T0 + draw.draw(st.integers(0, 60), "now"),
        0,
        bound,
        log_start,
        held_back_from=draw.draw(st.sampled_from([MAX_OFFSET, 20]), "held back from"),
    )
    last = last_records(log, now_ms=T0, expiration_ms=1)
    expected = dict(judge(log, this_round, last))

    headers = headers_of(log)
    part_of = np.array([bisect_right(starts, batch.base_offset) - 1 for batch in log])
    parts = [headers.where(part_of == number) for number in range(len(starts))]
    outline = together([part.at(outline_transactions(part, log_start)) for part in parts])
    around = transactions_around(outline.batches(), starts, log_start)
    judged = [
        of_batch
        for part, of_part in zip(parts, around, strict=True)
        for of_batch in judge_headers(part, this_round, last, of_part)
    ]
    assert judged == [(batch, expected[batch]) for batch, _ in judged]
    others = expected.keys() - dict(judged).keys()
    assert {expected[batch] for batch in others} <= {ORDINARY}
    assert not any(batch.is_control or not batch.record_count for batch in others)


def test_the_outline_of_many_transactions_is_short() -> None:
    log, transactions = [], OpenTransactions()
    for offset in range(0, 3_000, 3):
        log += [
            sent(offset, 1),
            sent(offset + 1, 2),
            ended(offset + 2, COMMIT, offset // 3 % 2 + 1),
        ]
    log = [b._replace(txn_first_offset=transactions.append(b)) if b.is_control else b for b in log]
    assert len(outline_transactions(headers_of(log), 0)) <= 2 * 9 + 2
