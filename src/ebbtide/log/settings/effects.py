"""A line for each property and header that ebbtide reads or writes, as docs/settings.md shows."""

from __future__ import annotations

from ebbtide.log.settings.replicas import REPLICAS
from ebbtide.log.settings.upstream import SOURCE
from ebbtide.records.limits import MAX_DECOMPRESSED

# Settings of a topic, which are properties of its records table.
EFFECTS = {
    "kafka.cleanup.policy": "`compact` cleans the log by key; `delete` applies the retention "
    "limits. Not set: neither. With `compact` alone DeleteRecords is refused.",
    "kafka.delete.retention.ms": "How long a tombstone or a transaction marker stays after the "
    "round that set its delete horizon.",
    "kafka.min.cleanable.dirty.ratio": "`clean_log` begins a round when more than this share of "
    "the bytes is dirty.",
    "kafka.min.compaction.lag.ms": "A record stays uncleaned for at least this long.",
    "kafka.max.compaction.lag.ms": "`clean_log` begins a round when dirty records are older than "
    "this, whatever the dirty ratio.",
    "kafka.retention.ms": "With `delete`: a segment goes when its newest record is older. With the "
    "event-time limit set too, when the log received all of it longer ago. -1 means no limit.",
    "kafka.retention.bytes": "With `delete`: the oldest segments go as long as at least this many "
    "bytes of the partition stay. A negative value means no limit.",
    "kafka.retention.max.eventtime.ms": "With `delete`: a segment goes when its newest event lies "
    "further behind the newest event of the partition (KIP-870). -1 means no limit.",
    "kafka.segment.bytes": "The size up to which a cleaner round merges segments, and at which a "
    "live topic's segments are rolled.",
    "kafka.segment.ms": "The age at which a live topic's segments are rolled.",
    "kafka.max.message.bytes": "The largest record batch that ebbtide builds itself; an export "
    "counts batches that are larger.",
    "kafka.message.timestamp.type": "Whose clock stamps the records of a live topic: the "
    "producer's, or the broker's when it appends.",
    "kafka.message.timestamp.after.max.ms": "An event time later than its append time plus this "
    "counts as the append time.",
    "kafka.producer.id.expiration.ms": "How long a producer without new batches keeps its last "
    "batch in the log, as an empty batch if need be.",
    "kafka.topic.id": "The id of the topic at its source. An ingest from a topic of another id is "
    "refused. The first ingest sets it.",
    "ebbtide.enabled": "`false` takes the topic out of `nightly_retention` and `replicate_log`. "
    "A job that is started by hand with `--topic` still runs.",
    "ebbtide.clean.idle": "`true`: a round also begins when a delete horizon is reached and no new "
    "data has come. `false`: only when Kafka's cleaner would begin one.",
    "ebbtide.rewrite.deleted.share": "`expire_snapshots` rewrites a file of a closed segment from "
    "this share of deleted rows on. 0: at the first deleted row, of active segments and of the "
    "batches table too, so that no table keeps a deletion vector.",
    "ebbtide.merge.target.bytes": "`expire_snapshots` joins files of small segments that a round "
    "has merged, up to this size. 0: never.",
    MAX_DECOMPRESSED: "A record batch that decompresses to more is refused, and its partition "
    "stops there.",
    "ebbtide.max.delete.ratio": "A night whose limits would remove a larger share of the topic's "
    "bytes leaves the topic as it is and keeps a plan to approve. 1: never.",
    "ebbtide.max.delete.records": "The same for a stage that would remove more records.",
    "ebbtide.max.delete.bytes": "The same for a stage that would remove more bytes of the log.",
    "ebbtide.max.emptied.partitions": "The same for limits that would leave more partitions "
    "without a record.",
    "ebbtide.plan.expire.ms": "How long after it was made a plan may be executed.",
    "ebbtide.undo.ms": "How long after it a run that removed something can be undone. "
    "`expire_snapshots` keeps the snapshots before it for as long. 0: nothing is noted or kept.",
    "ebbtide.plan.four.eyes": "`true`: a plan is executed only if somebody other than who asked "
    "for it has approved it, and no one removes anything by hand without a plan.",
    "ebbtide.plan.show.keys": "`true`: plans show example keys as text. `false`: their SHA-256.",
    "ebbtide.retention.combine": "`any`: each limit is a maximum. `all`: a segment goes only when "
    "`retention.ms` and the event-time limit both say so.",
    "ebbtide.retention.granularity": "`record`: single records past the event-time limit go too, "
    "wherever they lie.",
    "ebbtide.event.time": "Where a record's event time comes from. Applies to records that are "
    "ingested from then on.",
    "ebbtide.tombstone.explicit": "`true`: in format v2 a null value alone is no tombstone, and "
    "unmarked null values go to the quarantine (KIP-87).",
    "ebbtide.tombstone.header": "A record with this header, or with this header and value, is a "
    "tombstone.",
    "ebbtide.tombstone.predicate": "A record for which this SQL predicate is true is a tombstone.",
    REPLICAS: "Where else the log is kept: copies of its tables, and the live topic.",
    SOURCE: "Who writes the log. An ingest sets it. Empty: nobody does any more, so `erase_keys` "
    "may append to the tables.",
}

# The state: properties of the state table. The jobs write them; change none of them by hand.
STATE = {
    "ebbtide.state.<partition>.*": "Offsets, clocks and logical segments of a partition; of an "
    "adopted topic also the offsets that never arrived.",
    "ebbtide.round": "The cleaner round in flight.",
    "ebbtide.merge": "The merge of files in flight, or the id of the last one.",
    "ebbtide.undo": "The undo in flight.",
    "ebbtide.undone": "The last undo that ended; on a replica, that began on its primary.",
    "ebbtide.append": "The erasure's append in flight.",
    "ebbtide.ingest.slice": "The offsets of segment files that are being taken, and by which run.",
    "ebbtide.live.slice": "The slice of a live topic that is being taken.",
    "ebbtide.copied": "The table that the topic is copied from: its layout, and the snapshot up to "
    "which its rows are here.",
    "ebbtide.copied.slice": "The slice of that table that is being taken.",
    "ebbtide.replication": "On a replica: the replication in flight.",
    "ebbtide.replica.of": "On a replica: the id of its primary's table.",
    "ebbtide.adopted.seen": "The newest snapshot of an adopted table that the state covers.",
    "ebbtide.layout": "On an adopted table itself: which of its columns is what of a record.",
    "ebbtide.tables": "The ids of the data tables that the state tells of.",
    "ebbtide.rows.*": "Live rows of each segment, by which changes of others are noticed.",
    "ebbtide.seen.*": "The last known snapshot of each data table.",
    "ebbtide.removing": "Rows are being removed, so there may be fewer than counted.",
    "ebbtide.tidied": "The snapshots in which `expire_snapshots` left nothing to rewrite or merge.",
    "ebbtide.held": "The id of the table of the topic's held records, since its first copy.",
    "ebbtide.accepted": "On `lake.ebbtide.holds` itself, set by a person: snapshots that deleted "
    "rows or were rolled back, and were meant to.",
    "ebbtide.layout.version": "Which ebbtide can work on the tables: one that knows this layout.",
    "ebbtide.checksum": "A checksum over the whole state, by which an edit is noticed.",
}

# In the summaries of snapshots that ebbtide commits, beside the id of a round (ebbtide.round).
SUMMARY = {
    "ebbtide.own": "Marks the snapshot as committed by ebbtide.",
    "ebbtide.job": "The job that committed the snapshot.",
    "ebbtide.left": "The commit takes out what a killed ingest had left, no record of the log.",
    "ebbtide.slice": "The slice of a topic's source that an ingest appended with the snapshot.",
    "ebbtide.rows": "How many records a round removed, or how many batches it changed.",
    "ebbtide.undone.since": "On an adopted table, of an undo: by partition, since which snapshot.",
    "ebbtide.topic": "The topic of an adopted table whose rows left.",
}

# Headers of records.
HEADERS = {
    "ebbtide.erase.requested_by": "On a tombstone of `erase_keys`: who asked for it.",
    "ebbtide.erase.requested_at": "On a tombstone of `erase_keys`: when it was asked for.",
    "ebbtide.erase.reason": "On a tombstone of `erase_keys`: why.",
    "ebbtide.erase.run_id": "On a tombstone of `erase_keys`: in which run.",
    "ebbtide.timestamp": "A timestamp in milliseconds that no SQL timestamp can hold. An export "
    "turns it back.",
    "ebbtide.header.keys": "The place and the bytes (hex) of each header key of the record that is "
    "not UTF-8. An export turns them back.",
}
