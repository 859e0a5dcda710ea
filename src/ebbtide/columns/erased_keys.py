"""Recognise records of erased keys among many, by what the table of erasures has of each key.

That is an HMAC of the key, and a hash by which most other keys are passed over without an HMAC. The
hash is encrypted (AES, one block per key), so that without the topic's secret neither says which
key it is of.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from ebbtide.columns.keys import Hashes, KeyFilter, hash_keys
from ebbtide.ledger.erasure_secrets import Secret
from ebbtide.ledger.own_tables import NamedKey
from ebbtide.records.arrays import Bools, Int64s

BLOCK_BYTES, HMAC_BYTES = 16, 32
_FILTER_BITS_A_KEY = 16
_LEAST_FILTER_BYTES = 1024
# The cipher's key is derived from this and the secret.
_BLOCKS = b"ebbtide: hashes of erased keys"
# `tombstone_by` of a refused record, until mark_tombstones moves it to the quarantine.
ERASED_KEY = "erased_key"
# A record without a timestamp is judged by the time when the log received it.
TIMES = ("timestamp", "append_time")


def named_keys(secret: Secret, keys: Sequence[bytes]) -> dict[bytes, NamedKey]:
    """Return each key's name in the table of erasures."""
    blocks = np.zeros((len(keys), 2), np.uint64)
    blocks[:, 0] = hash_keys(pa.array(keys, pa.large_binary()))
    encrypted = _cipher(secret.value).encryptor().update(blocks.tobytes()).hex()
    width = 2 * BLOCK_BYTES
    return {
        key: NamedKey(secret.name(key), encrypted[n * width : (n + 1) * width], secret.fingerprint)
        for n, key in enumerate(keys)
    }


class ErasedKeys:
    """The erased keys of a topic."""

    def __init__(self, secret: Secret, erased: pa.Table) -> None:
        """`erased` has `key_hmac, key_block, erased_at` of each erased key, in any order."""
        newest = erased.group_by("key_hmac").aggregate([("key_block", "min"), ("erased_at", "max")])
        hashes = _decrypted(secret.value, _bytes_of(newest["key_block_min"]))
        order = np.argsort(hashes, kind="stable")
        hmacs = np.frombuffer(_bytes_of(newest["key_hmac"]), np.uint8).reshape(-1, HMAC_BYTES)
        times = newest["erased_at_max"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        self._secret = secret.value
        self._hashes, self._hmacs = hashes[order], hmacs[order]
        self._erased_at_us = times.to_numpy()[order]
        self._filter = KeyFilter.of_size(_filter_bytes(len(order)))
        self._filter.add(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def stripped(self, rows: pa.Table) -> pa.Table:
        """Return the records, of which refused ones have no key, value and headers any more.

        Their `tombstone_by` is `erased_key`. `rows` have columns of INGESTED_SCHEMA. A marked
        tombstone stays as it is: an erasure may rely on it to remove older records of a replica.
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
        """Judge each record of `rows`, which have a key and at least one of TIMES."""
        times = pc.coalesce(*(rows[name] for name in TIMES if name in rows.column_names))
        times_us = times.fill_null(0).cast(pa.int64()).to_numpy()
        refused, start = np.zeros(rows.num_rows, np.bool_), 0
        for chunk in rows["key"].chunks:
            end = start + len(chunk)
            refused[start:end] = self.refused(chunk, times_us[start:end])
            start = end
        return refused

    def refused(self, keys: pa.Array, times_us: Int64s) -> Bools:
        """Return True for each record of an erased key that is older than its erasure."""
        is_refused = np.zeros(len(keys), np.bool_)
        if not len(self):
            return is_refused
        hashes = hash_keys(keys)
        candidates = np.flatnonzero(self._filter.may_hold(hashes))
        starts, ends = (
            np.searchsorted(self._hashes, hashes[candidates], side) for side in ("left", "right")
        )
        alike = starts < ends
        for row, start, end in zip(
            candidates[alike].tolist(), starts[alike].tolist(), ends[alike].tolist(), strict=True
        ):
            key = keys[row].as_py()
            if key is not None:
                is_refused[row] = self._is_erased(key, start, end, int(times_us[row]))
        return is_refused

    def _is_erased(self, key: bytes, start: int, end: int, time_us: int) -> bool:
        """Return whether one of these keys is this one, and was erased after the time."""
        sought = hmac.digest(self._secret, key, hashlib.sha256)
        return any(
            self._hmacs[place].tobytes() == sought and time_us < self._erased_at_us[place]
            for place in range(start, end)
        )


def _bytes_of(texts: pa.ChunkedArray) -> bytes:
    """Return the bytes of all texts in hex, one after the other."""
    joined = "".join(texts.to_pylist())
    return bytes.fromhex(joined)


def _filter_bytes(keys: int) -> int:
    """Return the size of a filter of so many keys, a power of two."""
    wanted = max(_LEAST_FILTER_BYTES, keys * _FILTER_BITS_A_KEY // 8)
    return 1 << (wanted - 1).bit_length()


def _decrypted(secret: bytes, blocks: bytes) -> Hashes:
    plain = _cipher(secret).decryptor().update(blocks)
    hashes: npt.NDArray[np.uint64] = np.frombuffer(plain, np.uint64).reshape(-1, 2)[:, 0]
    return hashes


def _cipher(secret: bytes) -> Cipher[ECB]:
    """Return the cipher of hashes. Each is a block of its own, so no mode chains them."""
    return Cipher(AES(hmac.digest(secret, _BLOCKS, hashlib.sha256)), ECB())
