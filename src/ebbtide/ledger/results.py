"""The result of each job's run, as `lake.ebbtide.runs` stores it: one type per job.

Times are milliseconds since the epoch, or -1 if Kafka has none; sizes are bytes. A field that is
NotRequired is missing if the job had nothing to report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

# Rises when a field is removed or changes its meaning. Since 2, off_disk_from_ms takes files that
# wait to be rewritten into account, and the row's bytes_removed and files_removed count no files
# of delete_records and expire_snapshots. Since 3, plan is an id in lake.ebbtide.plans. Since 4,
# fields have the names on the right of RENAMED.
VERSION = 4

# By job; None: of each job.
RENAMED: Mapping[str | None, Mapping[str, str]] = {
    None: {"kept_by_holds": "copied_for_holds"},
    "mark_tombstones": {"by": "by_rule"},
    "clean_log": {"held_back": "waiting_for_replicas"},
    "expire_segments": {"by": "by_rule"},
    "expire_snapshots": {"deleted_rows_below_share": "deleted_rows_below_ratio"},
    "erase_keys": {"left": "remaining", "way": "method"},
    "hold_records": {"let_go": "released"},
    "repair_state": {
        "found": "foreign_changes",
        "way": "method",
        "cannot_be_taken_back": "cannot_be_rolled_back",
    },
}


class OfPartition(TypedDict):
    """The fields that every job reports for a partition."""

    log_start_offset: Annotated[int, "log start offset after the job"]
    low_watermark: Annotated[
        int, "lowest log start offset of the log and its replicas; -1: not known"
    ]
    low_watermark_before: NotRequired[Annotated[int, "low watermark before the job; -1: not known"]]
    log_end_offset: Annotated[int, "log end offset, one above the last offset"]
    note: NotRequired[Annotated[str, "a sentence that explains the numbers"]]


class OfTopic(TypedDict):
    """The fields that every job reports for a topic."""

    seconds: NotRequired[Annotated[float, "duration of the job without its start"]]
    plan: NotRequired[Annotated[str, "plan that was executed, or that a guard stored for approval"]]
    copied_for_holds: NotRequired[
        Annotated[dict[str, int], "records that were copied because a hold covers them, by hold"]
    ]
    rows_of_erased_keys: NotRequired[
        Annotated[
            int,
            "new rows whose key was erased after they were written: in an adopted table, or during "
            "an ingest",
        ]
    ]
    note: NotRequired[Annotated[str, "a sentence that explains the numbers"]]


class IngestedPartition(OfPartition):
    """ingest_segments and ingest_topic, of a partition."""

    records: NotRequired[Annotated[int, "records that were appended"]]
    batches: NotRequired[Annotated[int, "batches that were appended"]]
    bytes: NotRequired[Annotated[int, "size of the appended batches as the broker wrote them"]]
    segments: NotRequired[Annotated[int, "segments that were read"]]
    skipped: NotRequired[
        Annotated[list[str], "parts of the source that were skipped, each with the reason"]
    ]
    accepted_gaps: NotRequired[
        Annotated[
            list[Any], "accepted gaps as pairs: first missing offset, first offset after the gap"
        ]
    ]
    timestamps_in_headers: NotRequired[
        Annotated[int, "records whose event time comes from a header"]
    ]
    event_times_missing: NotRequired[
        Annotated[int, "records for which ebbtide.event.time gave no event time"]
    ]
    offsets: NotRequired[Annotated[int, "in a plan: offsets that would be appended"]]
    timestamp_unit: NotRequired[
        Annotated[str, "unit in which the timestamps seem to be, if it is not milliseconds"]
    ]


class IngestedTopic(OfTopic):
    """ingest_segments and ingest_topic, of a topic."""

    drift: NotRequired[Annotated[list[Any], "settings that differ on the brokers"]]


class CopiedPartition(IngestedPartition):
    """ingest_table, of a partition."""

    rows: NotRequired[
        Annotated[int, "in a plan: rows of the table that would be copied, with repeats"]
    ]
    rows_below: NotRequired[
        Annotated[int, "rows that arrived below the log end offset: repeats or late rows"]
    ]
    repeated: NotRequired[Annotated[int, "rows that had been copied before"]]
    late: NotRequired[Annotated[int, "late rows, which were moved to the quarantine"]]


class CopiedTopic(OfTopic):
    """ingest_table, of a topic."""

    source: NotRequired[Annotated[str, "table that is copied"]]
    layout: NotRequired[Annotated[str, "tool whose layout the table has"]]
    columns: NotRequired[Annotated[list[str], "column of each part of a record"]]
    source_snapshot: NotRequired[Annotated[str, "snapshot of the table whose rows are copied"]]
    quarantine: NotRequired[Annotated[str, "quarantine table of late rows"]]


class MarkedPartition(OfPartition):
    """mark_tombstones, of a partition."""

    marked: Annotated[int, "records that were marked as tombstones"]
    by_rule: Annotated[dict[str, int], "marked records by rule"]
    unmarked: Annotated[int, "records whose mark was removed"]
    quarantined: Annotated[int, "records that were moved to the quarantine"]
    refused: Annotated[int, "quarantined records whose key was erased after they were written"]


class MarkedTopic(OfTopic):
    """mark_tombstones, of a topic."""

    quarantine: NotRequired[Annotated[str, "quarantine table"]]


class AdoptedPartition(OfPartition):
    """adopt_table, of a partition."""

    records: Annotated[int, "rows of the table"]
    missing_offsets: NotRequired[
        Annotated[int, "offsets without a row between the first and the last row"]
    ]


class AdoptTableTopic(OfTopic):
    """adopt_table, of a topic; lists are sentences."""

    layout: NotRequired[Annotated[str, "tool whose layout the table has"]]
    columns: NotRequired[Annotated[list[str], "column of each part of a record"]]
    topics: NotRequired[Annotated[list[str], "topics of the table, if it has several"]]
    exact: NotRequired[Annotated[list[str], "rules that hold as in Kafka, each with the reason"]]
    approximate: NotRequired[
        Annotated[list[str], "rules that hold approximately, each with the reason"]
    ]
    refused: NotRequired[Annotated[list[str], "rules that are not applied, each with the reason"]]


class AbandonedTopic(OfTopic):
    """abandon_table, of a topic."""

    properties: NotRequired[Annotated[list[str], "properties that were removed from the table"]]
    tables: NotRequired[Annotated[list[str], "ebbtide's own tables that were dropped"]]


class BeforeAndAfter(OfPartition):
    """A log before and after a job by its batch headers; markers are not counted as records."""

    missing_offsets: NotRequired[
        Annotated[int, "offsets of an adopted topic below the newest row that never arrived"]
    ]
    records_before: NotRequired[Annotated[int, "records before the job"]]
    records_after: NotRequired[Annotated[int, "records after the job"]]
    bytes_before: NotRequired[Annotated[int, "size of the batches before the job"]]
    bytes_after: NotRequired[Annotated[int, "size of the batches after the job"]]


class CleanedPartition(BeforeAndAfter):
    """clean_log, of a partition; the numbers of a round only if the partition was picked."""

    picked: Annotated[bool, "true if a cleaner round cleaned the partition"]
    reason: Annotated[str, "why the partition was picked, or why not"]
    dirty_ratio: NotRequired[Annotated[float, "dirty share of the cleanable bytes, in [0, 1]"]]
    uncleanable: NotRequired[Annotated[bool, "true if the partition cannot be cleaned; see reason"]]
    cleaned_to: NotRequired[Annotated[int, "end (exclusive) of the offsets that were cleaned"]]
    open_transaction: NotRequired[
        Annotated[
            dict[str, int],
            "transaction without a marker that ends the cleanable part: producer id, first offset, "
            "and begin",
        ]
    ]
    superseded: NotRequired[Annotated[int, "records removed because a newer record has their key"]]
    aborted: NotRequired[Annotated[int, "records removed because their transaction was aborted"]]
    keyless: NotRequired[Annotated[int, "records removed because they have no key"]]
    tombstones_kept: NotRequired[Annotated[int, "tombstones retained"]]
    tombstones_removed: NotRequired[Annotated[int, "tombstones removed after their delete horizon"]]
    markers_removed: NotRequired[
        Annotated[int, "transaction markers removed after their delete horizon"]
    ]
    markers_kept: NotRequired[Annotated[int, "transaction markers retained"]]
    next_horizon_ms: NotRequired[Annotated[int | None, "next delete horizon"]]
    waiting_for_replicas: NotRequired[
        Annotated[
            dict[str, int],
            "tombstones and markers that are due but wait because a replica lacks them; also "
            "reported if the partition was not picked",
        ]
    ]


class CleanedTopic(OfTopic):
    """clean_log, of a topic."""

    files_read: NotRequired[Annotated[int, "data files of an adopted table that the round read"]]
    files: NotRequired[Annotated[int, "data files of the adopted table"]]


class ExpiredPartition(BeforeAndAfter):
    """expire_segments, of a partition."""

    segments_expired: Annotated[int, "logical segments that expired"]
    records_in_segments: Annotated[int, "records in the expired segments, by batch headers"]
    newest_record_ms: Annotated[int | None, "largest timestamp in the expired segments"]
    bytes_removed: Annotated[int, "size of the batches in the expired segments"]
    segments_held_back: NotRequired[
        Annotated[
            int, "segments past a time limit that stay because an older segment is not past it"
        ]
    ]
    by_rule: Annotated[dict[str, int], "expired segments by rule"]
    records_expired: Annotated[int, "single records that expired by event time"]
    record_bytes_expired: Annotated[int, "size of the expired single records, without compression"]
    records_removed: NotRequired[Annotated[int, "records removed from the records table"]]


class ExpiredTopic(OfTopic):
    """expire_segments, of a topic."""

    delete_ratio: Annotated[float, "share of the topic's bytes that was removed, in [0, 1]"]


class DeletedPartition(OfPartition):
    """delete_records, of a partition."""

    error_code: Annotated[int, "error code of Kafka's DeleteRecordsResponse; 0: no error"]
    error_name: Annotated[str, "name of the error code"]
    requested_offset: NotRequired[Annotated[int, "requested offset; -1: the high watermark"]]
    records_removed: NotRequired[Annotated[int, "records removed from the records table"]]
    committed: NotRequired[Annotated[dict[str, Any], "committed offset of each consumer group"]]
    timestamp_ms: NotRequired[Annotated[int, "requested time"]]
    older_kept: NotRequired[
        Annotated[
            int,
            "records older than the requested time that stay: a record before them is newer",
        ]
    ]


class DeletedTopic(OfTopic):
    """delete_records, of a topic."""

    error_code: NotRequired[Annotated[int, "error code, if all partitions have the same"]]
    error_name: NotRequired[Annotated[str, "name of the error code"]]
    file_bytes_removed: NotRequired[
        Annotated[
            int,
            "size of the data files removed from the table; freed when their snapshots expire",
        ]
    ]
    replicas: NotRequired[Annotated[dict[str, Any], "records removed from each table replica"]]


class ReplicatedPartition(OfPartition):
    """replicate_log, of a partition."""

    replica_end_offsets: Annotated[
        dict[str, int], "log end offset of each replica; -1: the replica has no table yet"
    ]


class ReplicatedTopic(OfTopic):
    """replicate_log, of a topic."""

    replicas: Annotated[
        dict[str, Any], "records appended to and removed from each replica that was behind"
    ]


class SnapshotsTopic(OfTopic):
    """expire_snapshots, of a topic."""

    max_snapshot_age_ms: NotRequired[Annotated[int, "age at which snapshots expire"]]
    snapshots_expired: NotRequired[Annotated[int, "snapshots that expired"]]
    held_rows_deleted: NotRequired[Annotated[int, "copies that no hold covers any more, deleted"]]
    files: NotRequired[Annotated[int, "in a plan: files of the tables"]]
    bytes: NotRequired[Annotated[int, "in a plan: size of these files"]]
    bytes_written: NotRequired[
        Annotated[int, "size of the files that were written by rewriting or merging"]
    ]
    bytes_freed: NotRequired[Annotated[int, "size of the files that were deleted from storage"]]
    bytes_kept: NotRequired[Annotated[int, "size of the files that are still on storage"]]
    files_freed: NotRequired[Annotated[int, "number of files that were deleted from storage"]]
    files_rewritten: NotRequired[Annotated[int, "files rewritten without their deleted rows"]]
    segments_merged: NotRequired[Annotated[int, "number of physical segments that merging saved"]]
    deleted_rows_in_files: NotRequired[
        Annotated[
            int,
            "deleted rows in files of the records table: the sum of the next three fields",
        ]
    ]
    deleted_rows_below_ratio: NotRequired[
        Annotated[
            int,
            "deleted rows in files below ebbtide.rewrite.deleted.ratio, which are not rewritten",
        ]
    ]
    deleted_rows_in_active_segments: NotRequired[
        Annotated[int, "deleted rows in files of active segments"]
    ]
    deleted_rows_due: NotRequired[
        Annotated[int, "deleted rows in files that the next run rewrites"]
    ]
    oldest_snapshot_ms: NotRequired[
        Annotated[int | None, "oldest snapshot of the records table that can expire"]
    ]
    old_files_ms: NotRequired[
        Annotated[
            int | None, "newest snapshot that needs a file that the current one does not need"
        ]
    ]
    old_files_refs: NotRequired[
        Annotated[dict[str, str], "tags and branches that need such a file, each with its kind"]
    ]
    undo_until_ms: NotRequired[
        Annotated[int | None, "time until which an undo can need such a file"]
    ]
    left_files_deleted: NotRequired[
        Annotated[int, "files that ended runs wrote and never committed, deleted"]
    ]
    still_in: NotRequired[
        Annotated[dict[str, int], "other places that may have removed records, with a number each"]
    ]


class ErasedPartition(OfPartition):
    """erase_keys, of a partition."""

    keys: Annotated[int, "keys found in the partition"]
    found: Annotated[int, "records of the keys, without tombstones"]
    tombstones: Annotated[int, "tombstones that the run added to the log"]
    superseded: NotRequired[Annotated[int, "records of the keys that were removed from the table"]]
    remaining: NotRequired[Annotated[int, "records of the keys that are still in the table"]]
    last_horizon_ms: NotRequired[Annotated[int | None, "delete horizon of the last tombstone"]]
    out_of_table_ms: NotRequired[
        Annotated[
            int | None, "time at which the last of the keys' records was removed from the table"
        ]
    ]
    off_disk_from_ms: NotRequired[
        Annotated[
            int | None,
            "time from which expire_snapshots frees the removed records; null: no date yet",
        ]
    ]


class OfCertificate(OfTopic):
    """A certificate of erasure, of a topic."""

    certificate: NotRequired[Annotated[str, "id in `lake.ebbtide.certificates`"]]
    found_in: NotRequired[Annotated[dict[str, int], "places of a key, by kind of object"]]


class ErasedTopic(OfCertificate):
    """erase_keys, of a topic."""

    keys: Annotated[int, "keys to erase"]
    not_found: Annotated[int, "keys that no partition had at the beginning"]
    arrived: NotRequired[Annotated[int, "keys of these that have records at the end"]]
    method: Annotated[
        str, "how the keys are erased: tombstones produced, tombstones appended, or rows deleted"
    ]
    requested_by: Annotated[str, "person who asked for the erasure"]
    reason: Annotated[str, "reason"]
    superseded: NotRequired[Annotated[int, "records of the keys that were removed from the table"]]
    remaining: NotRequired[Annotated[int, "records of the keys that are still in the table"]]
    last_horizon_ms: NotRequired[Annotated[int | None, "delete horizon of the last tombstone"]]
    out_of_table_ms: NotRequired[
        Annotated[
            int | None, "time at which the last of the keys' records was removed from the table"
        ]
    ]
    off_disk_from_ms: NotRequired[
        Annotated[
            int | None,
            "time from which expire_snapshots frees the removed records; null: no date yet",
        ]
    ]


class ExportedPartition(OfPartition):
    """export_segments, of a partition."""

    segments: Annotated[int, "segment files"]
    batches: NotRequired[Annotated[int, "batches in the segment files"]]
    records: NotRequired[Annotated[int, "records in the segment files"]]
    bytes: NotRequired[Annotated[int, "size of the segment files"]]
    converted_batches: NotRequired[Annotated[int, "batches converted from magic 0 or 1 to 2"]]
    batches_above_max_message_bytes: NotRequired[
        Annotated[int, "batches that a broker would refuse from a producer"]
    ]
    largest_batch_bytes: NotRequired[Annotated[int, "size of the largest batch"]]


class ExportedTopic(OfTopic):
    """export_segments, of a topic."""

    target: Annotated[str, "log directory"]


class CertifiedTopic(OfCertificate):
    """certify_erasure, of a topic."""

    keys: Annotated[int, "keys that were searched for"]
    objects: Annotated[int, "objects that were searched"]
    bytes: Annotated[int, "size of these objects"]
    result: NotRequired[Annotated[str, "not found, found or incomplete"]]


class HeldPartition(OfPartition):
    """hold_records, of a partition."""

    covered: Annotated[int, "records of the log that the hold covers"]
    released: Annotated[int, "copies that the hold no longer covers; expire_snapshots deletes them"]


class HeldTopic(OfTopic):
    """hold_records, of a topic."""

    action: Annotated[str, "make, change or end"]
    hold: Annotated[str, "hold id and case"]
    erased: NotRequired[
        Annotated[int, "records under the hold that it does not keep: their keys were erased"]
    ]


class ConfiguredPartition(OfPartition):
    """configure_topic, of a partition."""

    next_run: Annotated[
        dict[str, Any], "what the jobs of the next nightly run would report, by job"
    ]


class ConfiguredTopic(OfTopic):
    """configure_topic, of a topic."""

    changes: Annotated[dict[str, Any], "changed settings, before and after"]
    next_run: Annotated[
        dict[str, Any], "share of the topic's bytes that the next nightly run would remove"
    ]


class RepairedPartition(OfPartition):
    """repair_state, of a partition."""

    records_removed: NotRequired[
        Annotated[dict[str, int], "rows removed from the records table, by reason"]
    ]
    batches_removed: NotRequired[
        Annotated[dict[str, int], "rows removed from the batches table, by reason"]
    ]
    cleaned_again_from: NotRequired[
        Annotated[int, "offset from which the next cleaner round cleans again"]
    ]
    rebuilt: NotRequired[Annotated[str, "parts of the state that were rebuilt"]]


class RepairedTopic(OfTopic):
    """repair_state, of a topic."""

    foreign_changes: Annotated[str, "foreign changes of the tables"]
    method: Annotated[str, "take back (rollback), keep (accept the changes) or none"]
    headers_rebuilt: NotRequired[Annotated[int, "batch headers rebuilt from the remaining records"]]
    records_back_to_snapshot: NotRequired[
        Annotated[str, "snapshot to which the records table was rolled back"]
    ]
    batches_back_to_snapshot: NotRequired[
        Annotated[str, "snapshot to which the batches table was rolled back"]
    ]
    cannot_be_rolled_back: NotRequired[Annotated[str, "why there is no rollback"]]


class UndonePartition(OfPartition):
    """undo_run, of a partition."""

    log_start_offset_before: NotRequired[Annotated[int, "log start offset before the undo"]]
    records_returned: NotRequired[Annotated[int, "records that were restored"]]
    runs_undone: NotRequired[Annotated[int, "removals that were undone: one for each job of a run"]]
    reason: NotRequired[Annotated[str, "why nothing was undone"]]


class UndoneTopic(OfTopic):
    """undo_run, of a topic."""

    undone_run: Annotated[str, "run to undo"]
    undone: Annotated[dict[str, int], "jobs that were undone, each with its number of partitions"]
    paused_until_ms: NotRequired[Annotated[int, "end of the pause that keeps the restored records"]]
    replicas: NotRequired[Annotated[dict[str, Any], "records restored on each table replica"]]


class Result(TypedDict):
    """`result` of one row, as JSON; partitions are named by their numbers."""

    version: int
    partitions: dict[str, Mapping[str, Any]]
    topic: Mapping[str, Any]


def by_new_names(job: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a result of any version with the names of this one."""
    if result.get("version", VERSION) >= 4:
        return result
    names = {**RENAMED[None], **RENAMED.get(job, {})}

    def renamed(numbers: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in numbers.items()}

    partitions = result.get("partitions", {})
    return {
        **result,
        "partitions": {p: renamed(numbers) for p, numbers in partitions.items()},
        "topic": renamed(result.get("topic", {})),
    }
