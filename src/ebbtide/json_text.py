"""Parse JSON that others wrote or changed: anything malformed is a ValueError."""

from __future__ import annotations

import json
from typing import Any

# Errors besides ValueError that taking apart a malformed document may raise.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the document; ValueError where the text is none, or is nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("a document nested too deeply") from None
