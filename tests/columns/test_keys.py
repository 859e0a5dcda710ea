"""Filter and offset map agree with a dict, whatever the hashes do."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.keys import KeyFilter, OffsetMap, hash_keys, last_of_each

SCHEMA = pa.schema([("key", pa.binary()), ("offset", pa.int64())])
KEYS = st.lists(st.binary(max_size=40), max_size=50)


def binary(keys: list[bytes]) -> pa.Array:
    return pa.array(keys, pa.binary())


@given(KEYS, KEYS)
def test_a_key_that_was_added_is_found(added: list[bytes], others: list[bytes]) -> None:
    keys = KeyFilter.of_size(64)
    keys.add(hash_keys(binary(added)))
    assert keys.may_hold(hash_keys(binary(added + others)))[: len(added)].all()


@given(KEYS)
def test_a_hash_is_the_keys_alone_wherever_it_lies(keys: list[bytes]) -> None:
    whole = hash_keys(binary([b"before", *keys])).tolist()[1:]
    assert whole == hash_keys(binary([b"before", *keys]).slice(1)).tolist()
    assert whole == [hash_keys(binary([key])).tolist()[0] for key in keys]


def test_a_hash_never_changes() -> None:
    """The table of erasures stores hashes: with others, an erased key would come back unseen."""
    hashes = {
        b"": 0,
        b"a": 0xD4442D246C6930AF,
        b"12345678": 0xA70B49E0A3772DA1,
        b"customer-4711": 0xB239C36FCB3AEB66,
        b"alice@example.org": 0x9CE355D46FAB2275,
    }
    assert hash_keys(binary(list(hashes))).tolist() == list(hashes.values())


def test_few_other_keys_pass() -> None:
    keys = KeyFilter.of_size(16 * 1024)
    keys.add(hash_keys(binary([b"in-%d" % i for i in range(10_000)])))
    passed = keys.may_hold(hash_keys(binary([b"out-%d" % i for i in range(10_000)]))).mean()
    # Two bits for each of 10,000 keys among 131,072: (1 - e^-0.153)^2 = 2 %.
    assert passed < 0.03


def test_keys_that_differ_in_one_byte_have_other_hashes() -> None:
    keys = [bytes([i, j]) for i in range(256) for j in range(256)] + [b"", b"\0", b"\0\0\0"]
    assert len(set(hash_keys(binary(keys)).tolist())) == len(keys)


@given(st.lists(KEYS, max_size=3), KEYS, st.booleans())
def test_the_offset_map_is_a_dict(
    dirty: list[list[bytes]], others: list[bytes], all_collide: bool
) -> None:
    rows = [(key, i) for i, key in enumerate(key for keys in dirty for key in keys)]
    ends = np.cumsum([0, *map(len, dirty)])
    segments = [
        pa.table(list(zip(*rows[a:b], strict=True)) or [[], []], schema=SCHEMA)
        for a, b in pairwise(ends)
    ]
    asked = [key for key, _ in rows] + others
    some_hash = (lambda keys: np.zeros(len(keys), np.uint64)) if all_collide else hash_keys
    with patch("ebbtide.columns.keys.hash_keys", some_hash):
        offset_map = OffsetMap.of([last_of_each(segment) for segment in segments])
        latest = offset_map.latest(pa.chunked_array([binary(asked)]))
    assert latest.tolist() == [dict(rows).get(key, -1) for key in asked]
