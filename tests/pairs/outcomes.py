"""What each pair of jobs came to when it was run, stored for docs/pairs.md."""

from __future__ import annotations

import json
from pathlib import Path

STORED = Path(__file__).parent / "outcomes.json"
# An outcome by kind of topic, A, B and commit point of A.
Stored = dict[str, dict[str, dict[str, dict[str, str]]]]


def read_stored() -> Stored:
    stored: Stored = json.loads(STORED.read_text())
    return stored


def store(kind: str, a: str, found: dict[str, dict[str, str]]) -> None:
    """Store what A and its others came to, in place of what was stored of them."""
    stored = read_stored()
    of_kind = stored.setdefault(kind, {})
    of_kind[a] = {**of_kind.get(a, {}), **found}
    STORED.write_text(json.dumps(stored, indent=1, sort_keys=False) + "\n")
