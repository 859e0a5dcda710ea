"""Parse JSON that another tool or person wrote or changed: a malformed text is a ValueError."""

from __future__ import annotations

import json
from typing import Any

# Errors that reading the values of a malformed document may raise.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the document. Raise ValueError if the text is not JSON, or nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("a document nested too deeply") from None
