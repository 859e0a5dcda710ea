"""What the contenders are called, and what they clean."""

from __future__ import annotations

from benchmarks.clean_log.data.prepared import PLAIN_TABLE, TOPIC_TABLE

OURS, KAFKA = "ours", "kafka"
BY_HAND = ("overwrite", "cow-merge", "cow-two-steps", "mor-delete", "mor-merge", "mor-two-steps")
CONTENDERS = (OURS, KAFKA, *BY_HAND)


def table_of(contender: str) -> str | None:
    """The table that a contender cleans; None for Kafka's, which cleans files."""
    if contender == KAFKA:
        return None
    return TOPIC_TABLE if contender == OURS else PLAIN_TABLE
