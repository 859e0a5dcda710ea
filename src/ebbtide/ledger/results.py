"""The result of each job's run, as `lake.ebbtide.runs` keeps it: one type a job.

Times are milliseconds since the epoch, -1 where Kafka has none; sizes are bytes. A field with a
default may be missing if the job had nothing to report.
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

    log_start_offset: Annotated[int, "the log's first offset after the job"]
    low_watermark: Annotated[int, "the least log start offset of all replicas; -1 is not known"]
    low_watermark_before: NotRequired[
        Annotated[int, "the same before the job; -1 where only replicas could tell"]
    ]
    log_end_offset: Annotated[int, "the offset after the last"]
    note: NotRequired[Annotated[str, "what the numbers do not say"]]


class OfTopic(TypedDict):
    """The fields that every job reports for a topic."""

    seconds: NotRequired[Annotated[float, "what the job took, its start apart"]]
    plan: NotRequired[
        Annotated[str, "the plan that was executed, or that a guard kept to be approved"]
    ]
    copied_for_holds: NotRequired[
        Annotated[dict[str, int], "records that were copied, since holds cover them, by hold"]
    ]
    note: NotRequired[Annotated[str, "what the numbers do not say"]]


class IngestedPartition(OfPartition):
    """ingest_segments and ingest_topic, of a partition."""

    records: NotRequired[Annotated[int, "records that were appended"]]
    batches: NotRequired[Annotated[int, "their batches"]]
    bytes: NotRequired[Annotated[int, "of these batches, as the broker wrote them"]]
    segments: NotRequired[Annotated[int, "their segments"]]
    skipped: NotRequired[Annotated[list[str], "what of the source was left out, and why"]]
    accepted_gaps: NotRequired[Annotated[list[Any], "offsets that are missing, first and end"]]
    timestamps_in_headers: NotRequired[Annotated[int, "records whose event time a header says"]]
    event_times_missing: NotRequired[
        Annotated[int, "records in which the topic's expression found no event time"]
    ]
    offsets: NotRequired[Annotated[int, "offsets that a plan would take"]]
    timestamp_unit: NotRequired[
        Annotated[str, "the unit that timestamps seem to be in, if it is not milliseconds"]
    ]


class IngestedTopic(OfTopic):
    """ingest_segments and ingest_topic, of a topic."""

    drift: NotRequired[Annotated[list[Any], "settings that the brokers have differently"]]


class CopiedPartition(IngestedPartition):
    """ingest_table, of a partition."""

    rows: NotRequired[Annotated[int, "rows of the table that a plan would copy, with repeats"]]
    rows_below: NotRequired[
        Annotated[int, "rows that came below the log end offset: repeats, or late"]
    ]
    repeated: NotRequired[Annotated[int, "rows that were copied already"]]
    late: NotRequired[Annotated[int, "rows that came too late, and are in the quarantine"]]


class CopiedTopic(OfTopic):
    """ingest_table, of a topic."""

    source: NotRequired[Annotated[str, "the table that is copied"]]
    layout: NotRequired[Annotated[str, "whose layout it has"]]
    columns: NotRequired[Annotated[list[str], "the column of each part of a record"]]
    source_snapshot: NotRequired[Annotated[str, "the table's snapshot whose rows are copied"]]
    quarantine: NotRequired[Annotated[str, "the table that took late rows"]]


class MarkedPartition(OfPartition):
    """mark_tombstones, of a partition."""

    marked: Annotated[int, "records that became tombstones"]
    by_rule: Annotated[dict[str, int], "these by the rule that said so"]
    unmarked: Annotated[int, "records that are tombstones no more"]
    quarantined: Annotated[int, "records that went to the quarantine table"]


class MarkedTopic(OfTopic):
    """mark_tombstones, of a topic."""

    quarantine: NotRequired[Annotated[str, "the table that took records"]]


class AdoptedPartition(OfPartition):
    """adopt_table, of a partition."""

    records: Annotated[int, "rows of the table"]
    missing_offsets: NotRequired[Annotated[int, "offsets between its first and last row without"]]


class AdoptTableTopic(OfTopic):
    """adopt_table, of a topic; lists are sentences."""

    layout: NotRequired[Annotated[str, "whose layout it is"]]
    columns: NotRequired[Annotated[list[str], "the column of each part of a record"]]
    topics: NotRequired[Annotated[list[str], "the topics of a table that holds several"]]
    exact: NotRequired[Annotated[list[str], "rules that hold as in Kafka, and why"]]
    approximate: NotRequired[Annotated[list[str], "rules that nearly hold, and why"]]
    refused: NotRequired[Annotated[list[str], "rules that are not applied, and why"]]


class AbandonedTopic(OfTopic):
    """abandon_table, of a topic."""

    properties: NotRequired[Annotated[list[str], "the table's properties that were removed"]]
    tables: NotRequired[Annotated[list[str], "the tables of ebbtide's own that were dropped"]]


class BeforeAndAfter(OfPartition):
    """A log before and after a job, as its batch headers count it; markers are no records."""

    missing_offsets: NotRequired[
        Annotated[int, "offsets of an adopted topic that never arrived, up to the newest row"]
    ]
    records_before: NotRequired[Annotated[int, "records before the job"]]
    records_after: NotRequired[Annotated[int, "records after it"]]
    bytes_before: NotRequired[Annotated[int, "batches before the job"]]
    bytes_after: NotRequired[Annotated[int, "batches after it"]]


class CleanedPartition(BeforeAndAfter):
    """clean_log, of a partition; a round's numbers only if it was picked."""

    picked: Annotated[bool, "whether a cleaner round covered it"]
    reason: Annotated[str, "why, or why not"]
    dirty_ratio: NotRequired[
        Annotated[float, "the share of bytes that could be cleaned and was dirty, in [0, 1]"]
    ]
    uncleanable: NotRequired[Annotated[bool, "whether its records cannot be cleaned, see reason"]]
    open_transaction: NotRequired[
        Annotated[
            dict[str, int],
            "the transaction without a marker that keeps the round from going further: its "
            "producer's id, its first offset, and since when",
        ]
    ]
    superseded: NotRequired[Annotated[int, "records removed since a newer one has their key"]]
    aborted: NotRequired[Annotated[int, "records removed with their aborted transaction"]]
    keyless: NotRequired[Annotated[int, "records removed since they have no key"]]
    tombstones_kept: NotRequired[Annotated[int, "tombstones that stay for now"]]
    tombstones_removed: NotRequired[Annotated[int, "tombstones past their delete horizon"]]
    markers_removed: NotRequired[Annotated[int, "transaction markers past their delete horizon"]]
    markers_kept: NotRequired[Annotated[int, "transaction markers that stay for now"]]
    next_horizon_ms: NotRequired[Annotated[int | None, "the first delete horizon to come"]]
    waiting_for_replicas: NotRequired[
        Annotated[
            dict[str, int],
            "tombstones and markers that are due, and that a replica does not hold yet; also of a "
            "partition that was not picked",
        ]
    ]


class CleanedTopic(OfTopic):
    """clean_log, of a topic."""

    files_read: NotRequired[
        Annotated[int, "data files of an adopted table that a round opens, by their bounds"]
    ]
    files: NotRequired[Annotated[int, "all data files of it"]]


class ExpiredPartition(BeforeAndAfter):
    """expire_segments, of a partition."""

    segments_expired: Annotated[int, "logical segments that retention removed"]
    records_in_segments: Annotated[int, "their records, as their batch headers count them"]
    newest_record_ms: Annotated[int | None, "the largest timestamp in them"]
    bytes_removed: Annotated[int, "their batches"]
    segments_held_back: NotRequired[
        Annotated[int, "segments past a limit of time behind one that is not"]
    ]
    by_rule: Annotated[dict[str, int], "segments by the rule that removed them"]
    records_expired: Annotated[int, "single records past the event-time limit"]
    record_bytes_expired: Annotated[int, "these records, without compression"]
    records_removed: NotRequired[Annotated[int, "rows that left the records table"]]


class ExpiredTopic(OfTopic):
    """expire_segments, of a topic."""

    delete_ratio: Annotated[float, "the share of the topic's bytes that goes, in [0, 1]"]


class DeletedPartition(OfPartition):
    """delete_records, of a partition."""

    error_code: Annotated[int, "as Kafka's DeleteRecordsResponse has it; 0 is none"]
    error_name: Annotated[str, "its name"]
    requested_offset: NotRequired[Annotated[int, "up to where was asked; -1 is the high watermark"]]
    records_removed: NotRequired[Annotated[int, "rows that left the records table"]]
    committed: NotRequired[
        Annotated[dict[str, Any], "the offset that each consumer group has committed"]
    ]
    timestamp_ms: NotRequired[Annotated[int, "the time that was asked for"]]
    older_kept: NotRequired[
        Annotated[int, "records of an older time that stay, behind one that is not older"]
    ]


class DeletedTopic(OfTopic):
    """delete_records, of a topic."""

    error_code: NotRequired[Annotated[int, "where every partition has the same error"]]
    error_name: NotRequired[Annotated[str, "its name"]]
    file_bytes_removed: NotRequired[
        Annotated[int, "data files that left the table, on the disk until their snapshots expire"]
    ]
    replicas: NotRequired[Annotated[dict[str, Any], "rows that left each replica that is a table"]]


class ReplicatedPartition(OfPartition):
    """replicate_log, of a partition."""

    replica_end_offsets: Annotated[dict[str, int], "the log end offset of each replica; -1 is none"]


class ReplicatedTopic(OfTopic):
    """replicate_log, of a topic."""

    replicas: Annotated[
        dict[str, Any], "rows appended to, and removed from, each replica that was behind"
    ]


class SnapshotsTopic(OfTopic):
    """expire_snapshots, of a topic."""

    max_snapshot_age_ms: NotRequired[Annotated[int, "the age from which snapshots expire"]]
    snapshots_expired: NotRequired[Annotated[int, "snapshots that did"]]
    held_rows_deleted: NotRequired[Annotated[int, "kept records that their hold covers no more"]]
    files: NotRequired[Annotated[int, "files of the tables, in a plan"]]
    bytes: NotRequired[Annotated[int, "their size, in a plan"]]
    bytes_written: NotRequired[Annotated[int, "files that were rewritten or merged"]]
    bytes_freed: NotRequired[Annotated[int, "files that left the disk"]]
    bytes_kept: NotRequired[Annotated[int, "files that stay on it"]]
    files_freed: NotRequired[Annotated[int, "how many files left the disk"]]
    files_rewritten: NotRequired[Annotated[int, "files rewritten without their deleted rows"]]
    segments_merged: NotRequired[Annotated[int, "physical segments fewer than before"]]
    deleted_rows_in_files: NotRequired[
        Annotated[int, "deleted rows that a file of the records table holds still, the sum of:"]
    ]
    deleted_rows_below_ratio: NotRequired[
        Annotated[int, "those in files of which too few rows are deleted to rewrite them"]
    ]
    deleted_rows_in_active_segments: NotRequired[Annotated[int, "those in active segments"]]
    deleted_rows_due: NotRequired[Annotated[int, "those in files that the next run rewrites"]]
    oldest_snapshot_ms: NotRequired[
        Annotated[int | None, "the oldest snapshot of the records table that may expire"]
    ]
    old_files_ms: NotRequired[
        Annotated[int | None, "the newest that needs a file which the current one does not"]
    ]
    old_files_refs: NotRequired[
        Annotated[dict[str, str], "tags and branches that need one, each with its kind"]
    ]
    undo_until_ms: NotRequired[
        Annotated[int | None, "until when an undo may need one, whatever its age"]
    ]


class ErasedPartition(OfPartition):
    """erase_keys, of a partition."""

    keys: Annotated[int, "keys that were found in it"]
    found: Annotated[int, "their records, tombstones apart"]
    tombstones: Annotated[int, "tombstones that the run brought into the log"]
    superseded: NotRequired[Annotated[int, "records of the keys that have left the table"]]
    remaining: NotRequired[Annotated[int, "those that have not yet"]]
    last_horizon_ms: NotRequired[Annotated[int | None, "when the last tombstone may leave"]]
    out_of_table_ms: NotRequired[Annotated[int | None, "when all had left the table"]]
    off_disk_from_ms: NotRequired[
        Annotated[
            int | None,
            "from when on an expire_snapshots takes all off the disk; null without such a date",
        ]
    ]


class ErasedTopic(OfTopic):
    """erase_keys, of a topic."""

    keys: Annotated[int, "keys that were asked for"]
    not_found: Annotated[int, "those that no partition has"]
    method: Annotated[
        str, "how tombstones reach the log: produced or appended; deleted, where none does"
    ]
    requested_by: Annotated[str, "who asked"]
    reason: Annotated[str, "why"]
    superseded: NotRequired[Annotated[int, "records of the keys that have left the table"]]
    remaining: NotRequired[Annotated[int, "those that have not yet"]]
    last_horizon_ms: NotRequired[Annotated[int | None, "when the last tombstone may leave"]]
    out_of_table_ms: NotRequired[Annotated[int | None, "when all had left the table"]]
    off_disk_from_ms: NotRequired[
        Annotated[
            int | None,
            "from when on an expire_snapshots takes all off the disk; null without such a date",
        ]
    ]


class ExportedPartition(OfPartition):
    """export_segments, of a partition."""

    segments: Annotated[int, "segment files"]
    batches: NotRequired[Annotated[int, "batches in them"]]
    records: NotRequired[Annotated[int, "records in them"]]
    bytes: NotRequired[Annotated[int, "their size"]]
    converted_batches: NotRequired[Annotated[int, "batches of magic 0 or 1 that became 2"]]
    batches_above_max_message_bytes: NotRequired[
        Annotated[int, "batches that a broker would refuse from a producer"]
    ]
    largest_batch_bytes: NotRequired[Annotated[int, "the largest batch"]]


class ExportedTopic(OfTopic):
    """export_segments, of a topic."""

    target: Annotated[str, "the log directory"]


class HeldPartition(OfPartition):
    """hold_records, of a partition."""

    covered: Annotated[int, "records of the log that the hold covers"]
    released: Annotated[int, "kept records that it covers no more: expire_snapshots deletes them"]


class HeldTopic(OfTopic):
    """hold_records, of a topic."""

    action: Annotated[str, "make, change or end"]
    hold: Annotated[str, "the hold, and its case"]


class ConfiguredPartition(OfPartition):
    """configure_topic, of a partition."""

    next_run: Annotated[dict[str, Any], "what the next run's jobs would do, each in its own words"]


class ConfiguredTopic(OfTopic):
    """configure_topic, of a topic."""

    changes: Annotated[dict[str, Any], "settings before and after"]
    next_run: Annotated[dict[str, Any], "the share of the bytes that the next expiry removes"]


class RepairedPartition(OfPartition):
    """repair_state, of a partition."""

    records_removed: NotRequired[Annotated[dict[str, int], "rows of the records table, by reason"]]
    batches_removed: NotRequired[Annotated[dict[str, int], "rows of the batches table, by reason"]]
    cleaned_again_from: NotRequired[Annotated[int, "where the next cleaner round begins"]]
    rebuilt: NotRequired[Annotated[str, "what of the state was worked out anew"]]


class RepairedTopic(OfTopic):
    """repair_state, of a topic."""

    foreign_changes: Annotated[str, "what others did to the tables"]
    method: Annotated[str, "take back, keep, or none"]
    headers_rebuilt: NotRequired[Annotated[int, "batch headers made from the records left"]]
    records_back_to_snapshot: NotRequired[Annotated[str, "where the records table went back to"]]
    batches_back_to_snapshot: NotRequired[Annotated[str, "where the batches table went back to"]]
    cannot_be_rolled_back: NotRequired[Annotated[str, "why"]]


class UndonePartition(OfPartition):
    """undo_run, of a partition."""

    log_start_offset_before: NotRequired[Annotated[int, "the log's first offset before the undo"]]
    records_returned: NotRequired[Annotated[int, "records that came back"]]
    runs_undone: NotRequired[Annotated[int, "removing jobs of runs that went back"]]
    reason: NotRequired[Annotated[str, "why nothing went back"]]


class UndoneTopic(OfTopic):
    """undo_run, of a topic."""

    undone_run: Annotated[str, "the run that was to be undone"]
    undone: Annotated[dict[str, int], "jobs of runs that went back, and in how many partitions"]
    paused_until_ms: NotRequired[Annotated[int, "until when no night removes from what came back"]]
    replicas: NotRequired[Annotated[dict[str, Any], "records that came back to each table replica"]]


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
