"""Every error that ebbtide raises on purpose: one tree, by cause.

A message says what was expected, what was found, where, and what to do about it.
`transient` tells Airflow whether running the same thing again can help.
"""

from __future__ import annotations


class EbbtideError(Exception):
    """Root of every error raised on purpose."""

    transient = False


class SourceError(EbbtideError):
    """The source of an ingest is not what it should be."""


class CorruptSegmentError(SourceError):
    """Bytes in a segment file that cannot be what Kafka wrote there."""


class OversizedBatchError(CorruptSegmentError):
    """A batch that takes more memory when decompressed than a setting allows."""


class ForeignLogError(SourceError):
    """A source that is not the continuation of what the table holds."""


class OffsetGapError(SourceError):
    """Offsets are missing where the topic's cleanup.policy allows none to be."""


class ConfigurationError(EbbtideError):
    """A property whose value its topic cannot run with."""


class RequestError(EbbtideError):
    """A request or an argument that is not well formed."""


class UnknownTopicError(EbbtideError):
    """A topic that has no table."""


class ForeignChangeError(EbbtideError):
    """What others did to a topic's tables, so that they are no longer what its state says."""


class UnreadableTableError(EbbtideError):
    """A table that the catalog knows and nobody can open."""


class NotCoveredError(EbbtideError):
    """A case that this version refuses rather than handle wrongly."""


class SafetyError(EbbtideError):
    """A plan that would do more than a guard allows."""


class CommitConflictError(EbbtideError):
    """Another writer moved the table since it was read; reading again helps."""

    transient = True


class UnavailableError(EbbtideError):
    """A service that did not answer; later it may."""

    transient = True
