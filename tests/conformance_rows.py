"""The scenarios of Kafka 4.3.1's suites, each with the tests that show it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A scenario; `shown` names cases of CASES, files of REGRESSIONS, or tests as `file::name`."""

    scenario: str
    shows: str
    shown: tuple[str, ...]


NEWEST = "the newest record of each key survives, and nothing of the active segment goes"
ABORTED = "aborted data supersedes nothing and goes at once"
ACROSS = "an aborted transaction across segments is aborted in each"
OPEN = "an open transaction makes its whole segment uncleanable"
COMMIT = "a commit marker outlives its data by a horizon"
LAST_EMPTY = "a producer's last data batch stays empty, and its marker with it"
ROUND_END = "the last batch of the round stays although it is empty"
TOMBSTONE = "a tombstone waits for its horizon, which is set once, and goes at it"
KEYLESS = "a keyless record goes; an empty key is a key and an empty value a value"
MIN_LAG = "min.compaction.lag.ms keeps a segment that is younger by a millisecond"
MAX_LAG = "max.compaction.lag.ms cleans a log that is too clean to be picked"
CODEC = "a compressed batch keeps its codec, an emptied one loses it"
APPEND_TIME = "LogAppendTime keeps the largest timestamp of a batch that loses records"
APPEND_TOMBSTONE = "a tombstone under LogAppendTime waits by the round's clock"
LOWERED = "a segment whose newest record was superseded expires by what is left"
PREFIX = "retention takes a prefix: log start offset, size, time; a future time blocks it"
ROLLS = "retention of the active segment rolls an empty one"
RETENTION = "tests/log/test_retention.py::"
SEGMENTS = "tests/log/test_logical_segments.py::"
DELETE = "tests/log/test_delete_answers.py::"
DELETE_TABLE = "tests/jobs/delete_records/test_delete_records.py::"
EXPORT = "tests/jobs/export_segments/test_export_segments.py::"
CLEAN = "tests/jobs/clean_log/test_clean_log.py::"
SAMPLE = "tests/nights/test_sample_against_kafka.py::test_the_tables_hold_what_kafka_leaves"
ROWS = {
    "LogCleanerTest": (
        Row(
            "testCleanSegments",
            "older records of a key are removed, over several segments",
            (NEWEST,),
        ),
        Row(
            "testDuplicateCheckAfterCleaning",
            "batches retain last offset and sequence",
            (LAST_EMPTY, SAMPLE),
        ),
        Row("testBasicTransactionAwareCleaning", "aborted keys supersede nothing", (ABORTED,)),
        Row(
            "testCleanWithTransactionsSpanningSegments",
            "undecided data is not cleaned",
            (OPEN, ACROSS),
        ),
        Row("testCommitMarkerRemoval", "a marker is removed one horizon after its data", (COMMIT,)),
        Row("testDeletedBatchesWithNoMessagesRead", "batches of aborted data only", (ACROSS,)),
        Row(
            "testCommitMarkerRetentionWithEmptyBatch",
            "an empty batch retains its marker",
            (LAST_EMPTY,),
        ),
        Row(
            "testCleanEmptyControlBatch",
            "a marker is emptied and keeps its epoch",
            ("a marker of a new epoch is its producer's last record",),
        ),
        Row(
            "testCommittedTransactionSpanningSegments", "record and marker are retained", (COMMIT,)
        ),
        Row("testAbortedTransactionSpanningSegments", "an aborted range over segments", (ACROSS,)),
        Row(
            "testAbortMarkerRemoval",
            "aborted data is removed immediately, its marker in a later round",
            (ABORTED,),
        ),
        Row(
            "testEmptyBatchRemovalWithSequenceReuse",
            "an empty batch is removed once its producer wrote again or expired",
            ("a producer expires at the very millisecond", "a-producer-expires-by-its-append"),
        ),
        Row(
            "testAbortMarkerRetentionWithEmptyBatch",
            "an abort marker is retained while its empty batch is there",
            (LAST_EMPTY, "a committed transaction after an emptied abort marker is not aborted"),
        ),
        Row(
            "testMessageLargerThanMaxMessageSize",
            "a batch above max.message.bytes is retained",
            (EXPORT + "test_a_horizon_makes_deltas_negative_and_may_make_a_batch_too_large",),
        ),
        Row("testCleaningWithDeletes", "values of keys with a tombstone are removed", (TOMBSTONE,)),
        Row(
            "testLogCleanerRetainsProducerLastSequence",
            "the last sequence is retained",
            (LAST_EMPTY,),
        ),
        Row(
            "testLogCleanerRetainsProducerLastSequenceEvenIfTransactionAborted",
            "the last sequence of an aborted transaction is retained",
            ("a-producers-last-record-stays-empty",),
        ),
        Row(
            "testCleaningWithKeysConflictingWithTxnMarkerKeys",
            "a marker's key supersedes no record",
            ("a marker's key and a record's key that looks like it are two things",),
        ),
        Row(
            "testCleaningWithUncleanableSection",
            "duplicates above the bound are retained",
            (OPEN, MIN_LAG),
        ),
        Row("testCleaningWithUnkeyedMessages", "records without a key are removed", (KEYLESS,)),
        Row(
            "testCleanSegmentsRetainingLastEmptyBatch",
            "the round's last batch is retained",
            (ROUND_END,),
        ),
        Row(
            "testRecoveryAfterCrash",
            "a killed round ends like an uninterrupted one",
            (CLEAN + "test_a_round_that_is_killed_at_each_commit_ends_as_an_unbroken_one",),
        ),
        Row(
            "testCleanTombstone", "the horizon counts from the round, not the record", (TOMBSTONE,)
        ),
        Row(
            "testCleaningBeyondMissingOffsets",
            "a gap at a segment's end does not stop the round",
            ("a gap of offsets at a segment's end stops nothing",),
        ),
    ),
    "LogCleanerManagerTest": (
        Row(
            "testLogToClean, testLogToCleanWithUncleanableSection",
            "which bytes count as clean and cleanable",
            (SEGMENTS + "test_clean_and_cleanable_bytes",),
        ),
        Row(
            "testDirtyOffsetReset..., testDirtyOffsetLargerThanActiveSegmentBaseOffset",
            "a first dirty offset out of range",
            (SEGMENTS + "test_a_first_dirty_offset_out_of_range_is_reset",),
        ),
        Row(
            "testCleanableOffsetsForNone, testCleanableOffsetsActiveSegment",
            "the bound: decided transactions, and not the active segment",
            (SEGMENTS + "test_the_bound_begins_a_segment_and_passes_neither_active_nor_undecided",),
        ),
        Row(
            "testCleanableOffsetsForTime, testCleanableOffsetsForShortTime",
            "the bound by min.compaction.lag.ms",
            (MIN_LAG, SEGMENTS + "test_the_first_uncleanable_offset"),
        ),
        Row(
            "testUndecidedTransactionalDataNotCleanable",
            "open transactions lower the bound",
            (OPEN,),
        ),
    ),
    "LogCleaner integration tests": (
        Row(
            "LogCleanerParameterizedIntegrationTest.cleanerTest",
            "all codecs, end to end",
            (CODEC, SAMPLE),
        ),
        Row(
            "testCleansCombinedCompactAndDeleteTopic",
            "compact,delete does both",
            ("compact,delete expires a tombstone that still waits",),
        ),
        Row(
            "testCleanerWithMessageFormatV0V1V2, testCleaningNestedMessagesWithV0V1",
            "old formats are exported as v2",
            (
                "an-old-tombstone-goes-by-its-segments-age",
                "an-old-batch-ends-with-its-last-record",
                EXPORT + "test_old_formats_that_a_round_converted_are_what_kafkas_round_leaves",
            ),
        ),
        Row(
            "LogCleanerLagIntegrationTest.cleanerTest",
            "nothing is cleaned before the lag",
            (MIN_LAG,),
        ),
        Row("testMaxLogCompactionLag", "cleaned by age, not by ratio", (MAX_LAG,)),
    ),
    "MemoryRecordsTest, DefaultRecordBatchTest": (
        Row(
            "testFilterToPreservesPartitionLeaderEpoch, testFilterToPreservesProducerInfo",
            "epochs, producer and sequence are retained",
            (SAMPLE,),
        ),
        Row(
            "testFilterToEmptyBatchRetention, testEmptyBatchRetention, testEmptyBatchDeletion",
            "empty batches of 61 bytes, retained or removed",
            (ROUND_END, LAST_EMPTY),
        ),
        Row(
            "testBaseTimestampToDeleteHorizonConversion",
            "the horizon replaces the base timestamp",
            (
                TOMBSTONE,
                "tests/records/files/test_segment_writer.py::test_times_count_from_the_horizon_back",
            ),
        ),
        Row(
            "testFilterToBatchDiscard, testFilterTo",
            "which batches and records are retained",
            (ABORTED, NEWEST),
        ),
        Row(
            "testFilterToAlreadyCompactedLog", "a log that was cleaned before", (TOMBSTONE, SAMPLE)
        ),
        Row("testFilterToPreservesLogAppendTime", "the broker's time is retained", (APPEND_TIME,)),
        Row(
            "testBuildEndTxnMarker, testWriteEmptyHeader, testInvalidCrc",
            "the bytes of markers and empty batches",
            (EXPORT + "test_what_kafkas_classes_wrote_they_read_again",),
        ),
    ),
    "Retention: UnifiedLogTest, LogManagerTest": (
        Row("shouldDeleteSizeBasedSegments and its sibling", "retention.bytes", (PREFIX,)),
        Row(
            "shouldDeleteTimeBasedSegmentsReadyToBeDeleted and its sibling",
            "retention.ms",
            (PREFIX,),
        ),
        Row(
            "shouldNotDeleteSegmentsWhenPolicyDoesNotIncludeDelete",
            "compact alone removes no segment",
            (RETENTION + "test_without_delete_no_limit_removes",),
        ),
        Row(
            "shouldDeleteSegmentsReadyToBeDeletedWhenCleanupPolicyIsCompactAndDelete",
            "compact,delete",
            ("compact,delete expires a tombstone that still waits",),
        ),
        Row(
            "testLogDeletionAfterDeleteRecords, shouldDeleteStartOffsetBreachedSegments...",
            "segments below the log start offset",
            (PREFIX, RETENTION + "test_segments_below_the_log_start_offset_go_by_any_policy"),
        ),
        Row(
            "testDeleteOldSegments, testCannotDeleteSegmentsAtOrAboveHighWatermark",
            "never past the high watermark",
            (RETENTION + "test_nothing_at_or_above_the_high_watermark_goes",),
        ),
        Row(
            "testRetentionIdempotency",
            "a second run removes nothing",
            (RETENTION + "test_a_second_run_at_once_removes_nothing",),
        ),
        Row(
            "testDeletableSegmentsFilter, testDeletableSegmentsIteration",
            "a contiguous prefix",
            (RETENTION + "test_what_goes_is_a_prefix_by_rules_in_their_order",),
        ),
        Row(
            "testLastStableOffsetDoesNotExceedLogStartOffset...",
            "the last stable offset below an advanced log start offset",
            (
                "an open transaction holds the cleaner back also when its first segment has gone",
                "a-hidden-open-transaction-before-a-gap",
            ),
        ),
        Row(
            "testCleanupExpiredSegments, testCleanupSegmentsToMaintainSize",
            "all segments except the active one",
            (ROLLS,),
        ),
    ),
    "DeleteRecords": (
        Row(
            "DeleteRecordsRequestTest, testDeleteRecordsWithException",
            "answers and error codes",
            (DELETE + "test_a_log_from_5_to_10", DELETE + "test_which_topics_may_be_truncated"),
        ),
        Row(
            "testSeekAfterDeleteRecords, testConsumeAfterDeleteRecords",
            "nothing below is readable; -1",
            (
                DELETE_TABLE + "test_nothing_below_the_low_watermark_is_readable",
                DELETE_TABLE
                + "test_minus_one_is_the_high_watermark_and_lower_offsets_change_nothing",
            ),
        ),
        Row(
            "testLogStartOffsetCheckpoint, testLogStartOffsetAfterDeleteRecords",
            "the log start offset outlives a restart",
            (
                DELETE_TABLE
                + "test_a_request_that_is_killed_at_each_commit_is_finished_when_it_is_asked_again",
            ),
        ),
    ),
    "Supplements: what Kafka's suites do not ask": (
        Row("S1", "Kafka never cleans an idle log; ebbtide does", (TOMBSTONE, COMMIT)),
        Row("S2", "now equals the horizon", ("a-tombstone-goes-at-its-horizon", TOMBSTONE)),
        Row(
            "S4",
            "data below the log start offset",
            (
                "an-old-batch-astride-the-log-start",
                "what lies below the log start offset decides no abort and supersedes nothing",
            ),
        ),
        Row("S5", "no key, and an empty one", (KEYLESS,)),
        Row("S6", "a tombstone under LogAppendTime", (APPEND_TOMBSTONE,)),
        Row("S7", "limits met to the millisecond", (PREFIX, MIN_LAG)),
        Row("S8", "a timestamp in the future blocks later segments", (PREFIX,)),
        Row("S9", "the active segment expires", (ROLLS,)),
        Row("S10", "the round's last batch is empty", (ROUND_END,)),
        Row("S11", "retention.bytes met to the byte", (PREFIX,)),
        Row(
            "S12",
            "a changed delete.retention.ms does not change horizons",
            ("another delete.retention.ms leaves a horizon as it is", "a-horizon-is-set-once"),
        ),
        Row("S13", "compaction lowers the largest timestamp", (LOWERED,)),
        Row(
            "S14",
            "compact,delete removes a tombstone before its horizon",
            ("compact,delete expires a tombstone that still waits",),
        ),
    ),
}
