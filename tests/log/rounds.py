"""The round that the tests of compaction ask about."""

from ebbtide.kafka.batch_header import HEADER_BYTES
from ebbtide.kafka.compaction import Retention, Round, Survivors, Verdict
from tests.log.builders import T0, data

NOW_MS = T0 + 1_000
ROUND = Round(NOW_MS, delete_retention_ms=100, first_uncleanable_offset=10)
KEPT = Verdict(False, False, Retention.DELETE_EMPTY)
KEPT_EMPTY = Verdict(False, False, Retention.RETAIN_EMPTY)
SOME = Survivors(2, False, T0 + 5, T0 + 7, 60, 90)
THREE = data(0, 2, size_bytes=HEADER_BYTES + 90)
