"""Whole numbers of 32 and 64 bits: their limits, and functions to read them from JSON or text."""

from __future__ import annotations

import argparse
from collections.abc import Callable

MAX_INT = 2**31 - 1
MIN_LONG, MAX_LONG = -(2**63), 2**63 - 1
MAX_OFFSET = MAX_LONG  # means no limit


def whole(value: object) -> int:
    """Return the value. Raise TypeError unless it is a 64-bit whole number."""
    if type(value) is not int or not MIN_LONG <= value <= MAX_LONG:
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def parse_whole(text: str, maximum: int = MAX_LONG) -> int:
    """Return a number in plain digits, at most `maximum`. Raise ValueError for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= maximum):
        raise ValueError(f"expected a whole number from 0 to {maximum}, found {text!r:.40}")
    return int(text)


def whole_argument(least: int = 0, most: int = MAX_LONG) -> Callable[[str], int]:
    """Return an argparse type: a number from `least` to `most`, in plain digits."""

    def convert(text: str) -> int:
        try:
            value = parse_whole(text, most)
        except ValueError:
            value = -1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least} to {most}, found {text!r:.40}"
            )
        return value

    return convert
