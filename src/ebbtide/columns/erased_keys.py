"""Recognise records of erased keys, by the blocks in the table of erasures.

Each key has one encrypted block (AES). It has a hash of the key, to skip most other keys fast, and
the first half of the key's HMAC, which no other key has. Without the topic's secret, a block does
not show whose it is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from ebbtide.columns.keys import Hashes, hash_keys
from ebbtide.kafka.batch_header import in_likely_unit
from ebbtide.ledger.erasure_secrets import Secret
from ebbtide.ledger.own_tables import NamedKey
from ebbtide.records.arrays import Bools, Int64s, ms_in_header, to_us

BLOCK_BYTES = 16
HALF = BLOCK_BYTES  # length of half a block in hex
# A table has a byte for each value of the hashes' highest bits: a mark of the key there. So few
# other keys need a search; more if the table has its greatest size, in bytes.
_SLOTS_A_KEY = 16
_LEAST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 26
_MARK_BITS = np.uint64(24)  # to the right of the mark's 8 bits
_NOT_EMPTY = np.uint8(1)
_SHARED = 255  # the mark of a slot whose keys have different ones
_PART = 1 << 15  # hashes
# The cipher's key is derived from this and the secret.
_BLOCKS = b"ebbtide: blocks of erased keys"
# `tombstone_by` of a refused record, until mark_tombstones moves it to the quarantine.
ERASED_KEY = "erased_key"
# A record without a timestamp is judged by the time when the log received it.
TIMES = ("timestamp", "append_time")
_LAST_MS = 4_102_444_800_000  # 2100: a later timestamp is given in another unit
_LAST_US = _LAST_MS * 1000


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

    def __init__(self, secret: bytes, erased: pa.Table) -> None:
        hashes, self._hmacs = _decrypted(secret, erased["key_block"]).T
        self._unordered, self._hashes = hashes, np.sort(hashes)
        slots = 1 << (_SLOTS_A_KEY * len(hashes)).bit_length()
        slots = min(max(slots, _LEAST_SLOTS), _MOST_SLOTS)
        self._unused_bits = np.uint64(64 - (slots.bit_length() - 1))
        self._marks = np.zeros(slots, np.uint8)
        # Arrays of all keys would take longer to get than to fill.
        parts = np.split(self._hashes, range(_PART, len(self._hashes), _PART))
        for part in parts:
            self._marks[self._slots(part)] = _mark(part)
        for part in parts:
            taken = self._slots(part)
            self._marks[taken[self._marks[taken] != _mark(part)]] = _SHARED
        self._erased_at, self._secret = erased["erased_at"], secret

    @cached_property
    def _erased_at_us(self) -> Int64s:
        return to_us(self._erased_at)

    @cached_property
    def _order(self) -> Int64s:
        """The place of each of the ordered hashes. Only an erased key needs it."""
        return np.argsort(self._unordered)

    def _slots(self, hashes: Hashes) -> Int64s:
        return (hashes >> self._unused_bits).view(np.int64)

    def found(self, keys: pa.Array) -> Iterator[tuple[int, int]]:
        """Yield the position of each erased key in `keys`, and when it was last erased."""
        if not len(self._hashes):
            return
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
                yield row, int(self._erased_at_us[places][is_key].max())


def _mark(hashes: Hashes) -> npt.NDArray[np.uint8]:
    """Return a byte of each hash, which tells most keys of one slot apart. It is never 0."""
    return (hashes >> _MARK_BITS).astype(np.uint8) | _NOT_EMPTY


class ErasedKeys:
    """The erased keys of a topic."""

    def __init__(self, secret: Secret, newest_us: int, read: Callable[[], pa.Table]) -> None:
        """`read` returns `key_block, erased_at` of erased keys, in any order.

        It is called when a record is older than `newest_us`, after which no key was erased.
        """
        self._secret, self._newest_us, self._read = secret.value, newest_us, read

    @cached_property
    def _lookup(self) -> _Lookup:
        return _Lookup(self._secret, self._read())

    def stripped(self, rows: pa.Table) -> pa.Table:
        """Return the records, with empty key, value and headers in refused ones.

        Their `tombstone_by` is `erased_key`. `rows` have columns of INGESTED_SCHEMA. A marked
        tombstone is not changed: an erasure may need it to remove older records of a replica.
        """
        refused = self.refused_of(rows)
        if refused.any() and "is_tombstone" in rows.column_names:
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
        has_nulls = times[0].null_count > 0
        times_us = to_us(pc.coalesce(*times) if has_nulls else times[0])
        refused = np.zeros(rows.num_rows, np.bool_)
        may_be_older = (times_us < self._newest_us) | (times_us > _LAST_US)
        if not (has_nulls or may_be_older.any()):
            return refused
        for place, erased_at_us in self._lookup.found(rows["key"].combine_chunks()):
            refused[place] = _written_us(rows, place, int(times_us[place])) < erased_at_us
        return refused


def _written_us(rows: pa.Table, place: int, time_us: int) -> int:
    """Return when a record was probably written: its timestamp may be in another unit than ms."""
    ms = _ms_in_header(rows, place)
    return in_likely_unit(time_us // 1000 if ms is None else ms, _LAST_MS) * 1000


def _ms_in_header(rows: pa.Table, place: int) -> int | None:
    """Return the timestamp of a record for which Iceberg's type is too small, or None."""
    if not {"headers", "timestamp"} <= set(rows.column_names) or rows["timestamp"][place].is_valid:
        return None
    headers = rows["headers"][place].as_py()
    return ms_in_header(headers[-1]["key"].encode(), headers[-1]["value"]) if headers else None


def _decrypted(secret: bytes, blocks: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the hash and the half HMAC of each block. No block may be null."""
    plain = np.empty((len(blocks) + 1, 2), np.uint64)  # the cipher wants a block more
    target, start = plain.view(np.uint8).reshape(-1), 0
    for chunk in blocks.cast(pa.binary(BLOCK_BYTES)).chunks:
        first, end = chunk.offset * BLOCK_BYTES, (chunk.offset + len(chunk)) * BLOCK_BYTES
        encrypted = np.frombuffer(chunk.buffers()[1], np.uint8)[first:end]
        start += _cipher(secret).decryptor().update_into(encrypted.data, target[start:].data)
    return plain[:-1]


def _cipher(secret: bytes) -> Cipher[ECB]:
    """Return the cipher of blocks. No mode chains them, since each stands alone."""
    return Cipher(AES(hmac.digest(secret, _BLOCKS, hashlib.sha256)), ECB())
