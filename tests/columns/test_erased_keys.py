"""Records of erased keys are recognised by their HMACs, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.erased_keys import TIMES as TIME_COLUMNS
from ebbtide.columns.erased_keys import ErasedKeys, named_keys
from ebbtide.columns.live_records import INGESTED_SCHEMA
from ebbtide.ledger.erasure_secrets import Secret
from ebbtide.records.arrays import TIMESTAMP_HEADER

SECRET, OTHER = Secret(b"s" * 32, "s"), Secret(b"t" * 32, "t")
KEYS = st.lists(st.binary(max_size=20), min_size=1, max_size=20, unique=True)
MS, US = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
YEARS_2001_TO_2099 = (978_307_200_000, 4_070_908_800_000)
TIMES = st.integers(-(2**52), 0) | st.integers(*YEARS_2001_TO_2099)  # in ms


def erased(secret: Secret, *keys_at: tuple[bytes, int]) -> ErasedKeys:
    """The keys as the table of erasures has them; times in ms."""
    names = [named_keys(secret, [key])[key] for key, _ in keys_at]
    return of_blocks(secret, [name.key_block for name in names], [at for _, at in keys_at])


def of_blocks(secret: Secret, blocks: list[bytes], times: list[int]) -> ErasedKeys:
    rows = {
        "key_block": pa.array(blocks, pa.binary()),
        "erased_at": pa.array(times, MS).cast(US),
    }
    return ErasedKeys(secret, max(times, default=0) * 1000, lambda: pa.table(rows))


def refused(keys: ErasedKeys, records: list[tuple[bytes | None, int]]) -> list[bool]:
    rows = {
        "key": pa.array([key for key, _ in records], pa.binary()),
        "timestamp": pa.array([ms for _, ms in records], MS).cast(US),
    }
    return [bool(is_refused) for is_refused in keys.refused_of(pa.table(rows))]


@given(KEYS, st.data())
def test_a_record_is_refused_if_its_key_was_erased_after_it(
    keys: list[bytes], data: st.DataObject
) -> None:
    erased_at = {key: data.draw(TIMES) for key in data.draw(st.lists(st.sampled_from(keys)))}
    records: list[tuple[bytes | None, int]] = [(key, data.draw(TIMES)) for key in keys]
    assert refused(erased(SECRET, *erased_at.items()), records) == [
        key in erased_at and ms < erased_at[key] for key, ms in records if key is not None
    ]


def test_the_keys_are_read_once_a_record_is_older_than_an_erasure() -> None:
    """Each process reads them once, however many batches it gets."""
    reads = []
    rows = {"key_block": pa.array([], pa.binary()), "erased_at": pa.array([], US)}

    def read() -> pa.Table:
        reads.append(None)
        return pa.table(rows)

    keys = ErasedKeys(SECRET, 9000, read)
    assert refused(keys, [(b"a", 9), (b"b", 10)]) == [False, False]
    assert not reads
    for _ in range(2):
        assert refused(keys, [(b"a", 9), (b"b", 8)]) == [False, False]
    assert len(reads) == 1


def test_the_newest_erasure_of_a_key_counts() -> None:
    keys = erased(SECRET, (b"a", 5), (b"a", 9), (b"a", 7))
    assert refused(keys, [(b"a", 8), (b"a", 9), (None, 0)]) == [True, False, False]


def test_what_is_stored_says_nothing_without_the_secret() -> None:
    """Another secret gives other values, and no two keys have a value in common."""
    names = [
        name for secret in (SECRET, OTHER) for name in named_keys(secret, [b"a", b"b"]).values()
    ]
    assert len({part for name in names for part in name[:2]}) == 8
    block = named_keys(SECRET, [b"a"])[b"a"].key_block
    assert refused(of_blocks(OTHER, [block], [9]), [(b"a", 0)]) == [False]


def test_a_key_that_only_hashes_alike_is_no_erased_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key has the hash 0 here: their HMACs tell them apart."""
    alike = "ebbtide.columns.erased_keys.hash_keys"
    monkeypatch.setattr(alike, lambda keys: np.zeros(len(keys), np.uint64))
    keys = erased(SECRET, (b"b", 5), (b"a", 9), (b"c", 9))
    records: list[tuple[bytes | None, int]] = [(b"a", 8), (b"b", 8), (b"b", 4), (b"d", 0)]
    assert refused(keys, records) == [True, False, True, False]


@pytest.mark.parametrize("part", [1, 3, 100])
def test_keys_of_one_slot_are_all_found(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Each key's hash is its first byte, at the place of the mark: the highest bits are 0."""
    monkeypatch.setattr("ebbtide.columns.erased_keys._PART", part)

    def hashes(keys: pa.Array) -> np.ndarray:
        return np.array([key.as_py()[0] << 24 for key in keys], np.uint64)

    monkeypatch.setattr("ebbtide.columns.erased_keys.hash_keys", hashes)
    keys = erased(SECRET, *((letter.encode(), 9) for letter in "bdac"))
    assert refused(keys, [(letter.encode(), 8) for letter in "abcde"]) == [True] * 4 + [False]
    assert refused(erased(SECRET, (b"b", 9)), [(b"a", 8), (b"b", 8)]) == [False, True]


@pytest.mark.parametrize(("per_ms", "is_in_header"), [(0.001, False), (1e3, False), (1e6, True)])
def test_a_timestamp_in_another_unit_counts_in_it(per_ms: float, is_in_header: bool) -> None:
    """Kafka reads them as ms: seconds are in 1970, microseconds in the far future."""
    at_ms = 1_790_000_000_000
    rows = []
    for offset, later_ms in enumerate([-1000, 0, 1000]):
        ms = int((at_ms + later_ms) * per_ms)
        header = [{"key": TIMESTAMP_HEADER, "value": b"%d" % ms}]
        time = {"headers": header} if is_in_header else {"timestamp": ms}
        rows.append(row(offset, b"a", append_time=at_ms + 2000, **time))
    table = pa.Table.from_pylist(rows, schema=INGESTED_SCHEMA)
    assert table["timestamp"].null_count == (3 if is_in_header else 0)
    assert erased(SECRET, (b"a", at_ms)).refused_of(table).tolist() == [True, False, False]


def test_a_header_of_the_producer_is_no_timestamp() -> None:
    values = (b"no number", b"5", None)
    rows = [
        row(0, b"a", append_time=20, headers=[{"key": TIMESTAMP_HEADER, "value": value}])
        for value in values
    ]
    table = pa.Table.from_pylist(rows, schema=INGESTED_SCHEMA)
    assert not erased(SECRET, (b"a", 9)).refused_of(table).any()


def row(offset: int, key: bytes | None, **fields: Any) -> Mapping[str, Any]:
    headers = [{"key": "h", "value": b"1"}]
    names = dict.fromkeys(INGESTED_SCHEMA.names)
    times = {name: fields[name] * 1000 for name in TIME_COLUMNS if name in fields}  # given in ms
    given = {"offset": offset, "key": key, "value": b"v", "headers": headers}
    return {**names, **given, **fields, **times}


def test_of_a_refused_record_nothing_is_left_but_its_place() -> None:
    rows = [
        row(0, b"a", timestamp=8, append_time=20),
        row(1, b"b", timestamp=8, append_time=20),
        row(2, b"a", timestamp=9, append_time=20),
        row(3, b"a", append_time=8),
        row(4, b"a", append_time=9),
        row(5, None, timestamp=0, append_time=0),
        row(6, b"a", timestamp=8, append_time=20, is_tombstone=True),
    ]
    table = pa.Table.from_pylist(rows, schema=INGESTED_SCHEMA)
    table = pa.concat_tables([table.slice(0, 1), table.slice(1)])  # in two chunks
    stripped = erased(SECRET, (b"a", 9)).stripped(table)
    assert stripped.schema == INGESTED_SCHEMA
    after, columns = stripped.to_pylist(), ("offset", "key", "value", "headers", "tombstone_by")
    for place in (0, 3):
        assert [after[place][name] for name in columns] == [place, None, None, [], "erased_key"]
    kept = [1, 2, 4, 5, 6]
    assert stripped.take(kept).equals(table.take(kept))
    assert erased(SECRET, (b"z", 9)).stripped(table).equals(table)
    assert erased(SECRET).stripped(table).equals(table)
