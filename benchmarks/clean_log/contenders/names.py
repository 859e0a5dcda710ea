"""What the contenders are called, and what they clean."""

from __future__ import annotations

from benchmarks.clean_log.data.prepared import ADOPTED_TABLE, PLAIN_TABLE, TOPIC_TABLE

OURS, KAFKA = "ours", "kafka"
BY_HAND = ("overwrite", "cow-merge", "cow-two-steps", "mor-delete", "mor-merge", "mor-two-steps")
# Of a table that another writer has filled, in format 2 unless the name says 3.
ADOPTED = "adopted"
ADOPTED_BY_HAND = (
    "delete-on-adopted",
    "merge-on-adopted",
    "merge-on-adopted-v3",
    "cow-merge-on-adopted",
)
ON_ADOPTED = (ADOPTED, "adopted-v3", *ADOPTED_BY_HAND)
CONTENDERS = (OURS, KAFKA, *BY_HAND, *ON_ADOPTED)


def table_of(contender: str) -> str | None:
    """The table that a contender cleans; None for Kafka's, which cleans files."""
    if contender == KAFKA:
        return None
    if contender in ON_ADOPTED:
        return ADOPTED_TABLE
    return TOPIC_TABLE if contender == OURS else PLAIN_TABLE
