"""Whole numbers of 32 and 64 bits: their limits, and how one is read from JSON or text."""

from __future__ import annotations

import argparse
from collections.abc import Callable

MAX_INT = 2**31 - 1
MIN_LONG, MAX_LONG = -(2**63), 2**63 - 1
MAX_OFFSET = MAX_LONG  # stands for no bound


def whole(value: object) -> int:
    """Return the value, which has to be a whole number of 64 bits."""
    if type(value) is not int or not MIN_LONG <= value <= MAX_LONG:
        raise TypeError(f"{value!r} where a whole number belongs")
    return value


def parse_whole(text: str, maximum: int = MAX_LONG) -> int:
    """Return a number in plain digits, at most `maximum`; ValueError for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= maximum):
        raise ValueError(f"{text!r:.40} where a number of 0 to {maximum} belongs")
    return int(text)


def whole_argument(least: int = 0, most: int = MAX_LONG) -> Callable[[str], int]:
    """Return what argparse reads a number from `least` to `most` with, in plain digits."""

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
