"""The places of a lake whose files have a key, whatever its snapshots say."""

from __future__ import annotations

import base64
from pathlib import Path

from ebbtide_verify.scan import Sought, search

# No word of ebbtide and no hash has them. A bound of 16 characters has the whole short one.
KEY, SHORT_KEY = "whose-key-is-this-012345", "key-of-someone"
VALUE = "a-value-of-that-person-1"


def holding(folder: Path, *texts: str) -> set[str]:
    """The folders below whose files have one of the texts: namespace, table, data or metadata."""
    sought = Sought([spelled for text in texts or (KEY, SHORT_KEY) for spelled in _spellings(text)])
    return {
        "/".join(path.relative_to(folder).parts[:3])
        for path in folder.rglob("*")
        if path.is_file() and search(path.read_bytes(), sought)
    }


def _spellings(text: str) -> list[bytes]:
    """The text's bytes, in hex and in base64: what a JSON or a log might have."""
    data = text.encode()
    return [data, data.hex().encode(), data.hex().upper().encode(), base64.b64encode(data)]
