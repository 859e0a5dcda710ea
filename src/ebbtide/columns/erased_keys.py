"""Recognise records of erased keys, by the blocks in the table of erasures.

Each key has one encrypted block (AES). It has a hash of the key, to skip most other keys fast, and
the first half of the key's HMAC, which no other key has. Without the topic's secret, a block does
not show whose it is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from ebbtide.columns.keys import Hashes, hash_keys
from ebbtide.ledger.erasure_secrets import Secret
from ebbtide.ledger.own_tables import NamedKey
from ebbtide.records.arrays import Bools, Int64s, to_ms

BLOCK_BYTES = 16
HALF = BLOCK_BYTES  # length of half a block in hex
# A table has a byte for each value of the hashes' highest bits: a mark of the key there. So few
# other keys need a search; more if the table has its greatest size, in bytes.
_SLOTS_A_KEY = 16
_LEAST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 26
_MARK_BITS = np.uint64(24)  # to the right of the mark's 8 bits
_SHARED = 255  # the mark of a slot with several keys
_NEVER = np.iinfo(np.int64).min  # a time before all others
# The cipher's key is derived from this and the secret.
_BLOCKS = b"ebbtide: blocks of erased keys"
# `tombstone_by` of a refused record, until mark_tombstones moves it to the quarantine.
ERASED_KEY = "erased_key"
# A record without a timestamp is judged by the time when the log received it.
TIMES = ("timestamp", "append_time")


def named_keys(secret: Secret, keys: Sequence[bytes]) -> dict[bytes, NamedKey]:
    """Return each key's name in the table of erasures."""
    names = [secret.name(key) for key in keys]
    blocks = np.empty((len(keys), 2), np.uint64)
    blocks[:, 0] = hash_keys(pa.array(keys, pa.large_binary()))
    blocks[:, 1] = np.frombuffer(bytes.fromhex("".join(name[:HALF] for name in names)), np.uint64)
    encrypted = _cipher(secret.value).encryptor().update(blocks.tobytes())
    starts = range(0, len(encrypted), BLOCK_BYTES)
    return {
        key: NamedKey(name, encrypted[start : start + BLOCK_BYTES], secret.fingerprint)
        for key, name, start in zip(keys, names, starts, strict=True)
    }


class _Lookup:
    """A table of erased keys, to find them by hash."""

    def __init__(self, secret: bytes, blocks: bytes, erased_at_ms: Int64s) -> None:
        hashes, self._hmacs = _decrypted(secret, blocks).T
        self._unordered, self._hashes = hashes, np.sort(hashes)
        slots = 1 << (_SLOTS_A_KEY * len(hashes)).bit_length()
        slots = min(max(slots, _LEAST_SLOTS), _MOST_SLOTS)
        self._unused_bits = np.uint64(64 - (slots.bit_length() - 1))
        self._marks, taken = np.zeros(slots, np.uint8), self._slots(self._hashes)
        self._marks[taken] = _mark(self._hashes)
        # A key may have several rows.
        is_other = self._hashes[1:] != self._hashes[:-1]
        self._marks[taken[1:][(taken[1:] == taken[:-1]) & is_other]] = _SHARED
        self._erased_at_ms = erased_at_ms
        self._secret = secret

    @cached_property
    def _order(self) -> Int64s:
        """The place of each of the ordered hashes. Only an erased key needs it."""
        return np.argsort(self._unordered)

    def _slots(self, hashes: Hashes) -> Int64s:
        return (hashes >> self._unused_bits).view(np.int64)

    def found(self, keys: pa.Array) -> Iterator[tuple[int, int]]:
        """Yield the position of each erased key in `keys`, and when it was last erased."""
        hashes = hash_keys(keys)
        marks = self._marks[self._slots(hashes)]
        candidates = np.flatnonzero((marks == _mark(hashes)) | (marks == _SHARED))
        wanted = hashes[candidates]
        starts = np.searchsorted(self._hashes, wanted)
        alike = np.flatnonzero(self._hashes.take(starts, mode="clip") == wanted)
        ends = np.searchsorted(self._hashes, wanted[alike], "right")
        for row, start, end in zip(
            candidates[alike].tolist(), starts[alike].tolist(), ends.tolist(), strict=True
        ):
            key = keys[row].as_py()
            if key is None:
                continue
            half = np.frombuffer(hmac.digest(self._secret, key, "sha256"), np.uint64, 1)
            places = self._order[start:end]
            is_key = self._hmacs[places] == half
            if is_key.any():
                yield row, int(self._erased_at_ms[places][is_key].max())


def _mark(hashes: Hashes) -> npt.NDArray[np.uint8]:
    """Return a byte of each hash, which tells most keys of one slot apart."""
    return (hashes >> _MARK_BITS).astype(np.uint8)


class ErasedKeys:
    """The erased keys of a topic."""

    def __init__(self, secret: Secret, erased: pa.Table) -> None:
        """`erased` has `key_block, erased_at` of erased keys, in any order."""
        self._secret = secret.value
        self._blocks = _bytes_of(erased["key_block"])
        self._erased_at_ms = to_ms(erased["erased_at"])
        self._newest_ms = int(self._erased_at_ms.max(initial=_NEVER))

    @cached_property
    def _lookup(self) -> _Lookup:
        """The keys, ordered once a record is found that is older than an erasure."""
        return _Lookup(self._secret, self._blocks, self._erased_at_ms)

    def stripped(self, rows: pa.Table) -> pa.Table:
        """Return the records, with empty key, value and headers in refused ones.

        Their `tombstone_by` is `erased_key`. `rows` have columns of INGESTED_SCHEMA. A marked
        tombstone is not changed: an erasure may need it to remove older records of a replica.
        """
        refused = self.refused_of(rows)
        if "is_tombstone" in rows.column_names:
            refused &= ~rows["is_tombstone"].fill_null(False).to_numpy()
        if not refused.any():
            return rows
        mask = pa.array(refused)
        for name, empty in (("key", None), ("value", None), ("headers", [])):
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            kept = pc.if_else(mask, pa.scalar(empty, field.type), rows[name])
            rows = rows.set_column(place, field, kept)
        place = rows.schema.get_field_index("tombstone_by")
        if place < 0:
            return rows
        marked = pc.if_else(mask, pa.scalar(ERASED_KEY), rows["tombstone_by"])
        return rows.set_column(place, rows.schema.field(place), marked)

    def refused_of(self, rows: pa.Table) -> Bools:
        """Return, for each record, whether its key was erased after its time.

        `rows` have a key and at least one of TIMES.
        """
        times = [rows[name] for name in TIMES if name in rows.column_names]
        times_ms, start = to_ms(pc.coalesce(*times)), 0
        erased_at_ms = np.full(rows.num_rows, _NEVER)
        if not (times_ms < self._newest_ms).any():
            return times_ms < erased_at_ms
        for chunk in rows["key"].chunks:
            for row, ms in self._lookup.found(chunk):
                erased_at_ms[start + row] = ms
            start += len(chunk)
        return times_ms < erased_at_ms


def _bytes_of(blocks: pa.ChunkedArray) -> bytes:
    """Return all blocks, one after the other. No block may be null."""
    joined = blocks.cast(pa.binary(BLOCK_BYTES)).combine_chunks()
    first, end = joined.offset * BLOCK_BYTES, (joined.offset + len(joined)) * BLOCK_BYTES
    return bytes(joined.buffers()[1][first:end]) if len(joined) else b""


def _decrypted(secret: bytes, blocks: bytes) -> npt.NDArray[np.uint64]:
    plain = _cipher(secret).decryptor().update(blocks)
    return np.frombuffer(plain, np.uint64).reshape(-1, 2)


def _cipher(secret: bytes) -> Cipher[ECB]:
    """Return the cipher of blocks. No mode chains them, since each stands alone."""
    return Cipher(AES(hmac.digest(secret, _BLOCKS, hashlib.sha256)), ECB())
