"""A topic's state as properties: fixed texts, read and written again by the product."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ebbtide.iceberg.in_flight import CleaningRound, Merge, Undo
from ebbtide.iceberg.topics import Topic, adopted_ids
from ebbtide.jobs.erase_keys import direct_append
from ebbtide.kafka.live_offsets import Slice
from ebbtide.kafka.low_watermarks import Replication
from ebbtide.layouts.copied import CopiedTable
from ebbtide.layouts.layout import LAYOUT, Layout, table_properties, topic_properties
from ebbtide.ledger.topic_summary import TableSnapshots, is_tidy, parse_summary, tidied
from ebbtide.settings.config import TopicConfig
from ebbtide.settings.names import TopicName
from ebbtide.state import topic_state
from ebbtide.state import topic_state as row_counts
from ebbtide.state.topic_state import parse_states, to_properties

NAME = TopicName.parse("raw.events@orders")
# Partition 0 has all, partition 1 only what each state has.
PARTITIONS = """
0.log-start-offset 1            0.log-end-offset 90         0.first-dirty-offset 3
0.first-unmarked-offset 4       0.cleaned-at-ms 5           0.cleaned-end-offset 6
0.next-clean-ms 7               0.max-event-time-ms 8       0.expired-end-offset 9
0.first-appended-offset 10      0.horizon-ms 11             0.next-expiry-ms 12
0.expiry-basis 13               0.segments [[0,1000],[50,2000]]
0.horizons [[20,3000],[30,-1]]  0.sums [[100,1,2,3],[0,-1,-1,0]]
0.missing [[10,15,2],[60,62,2]]  0.late [[0,1]]
1.log-start-offset 0            1.log-end-offset 0          1.first-dirty-offset 0
1.first-unmarked-offset 0       1.cleaned-at-ms -1          1.cleaned-end-offset -1
1.next-clean-ms 0               1.max-event-time-ms -1      1.expired-end-offset -1
1.first-appended-offset -1      1.horizon-ms -1             1.next-expiry-ms 0
1.expiry-basis -1               1.segments [[0,0]]
"""
TEXTS = """
layout {"profile": "explicit", "partition": 1, "offset": 2, "timestamp": 3, "key": 4, "topic": 5,
    "topic_name": "orders", "values": [6, 7], "headers": 8, "mark": 9, "mark_text": "d",
    "is_shared": true}
round {"partitions": {"0": {"log_start_offset": 1, "first_segment_offset": 2,
    "first_dirty_offset": 3, "first_uncleanable_offset": 4, "is_idle": false,
    "held_back_from": 5}}, "id": "r1", "now_ms": 6, "delete_retention_ms": 7,
    "producer_id_expiration_ms": 8, "segment_bytes": 9, "records_snapshot": 1152921504606846976,
    "batches_snapshot": 11, "are_records_done": true, "removed": {"0": {"50": 7}}}
merge {"id": "m1", "groups": {"0": [[0, 50], [60, 70]]}}
undo {"id": "u1", "run_id": "run-1", "points": {"0": ["p1", "p2"]}, "paused_until_ms": 5}
replication {"id": "c1", "emptied": [0, 2], "taken_over": true}
slice {"now": "2026-11-22T01:02:03.456000+00:00", "ranges": {"0": [3, 9], "1": [0, 0]}}
copied {"table_id": "t1", "layout": {"profile": "spark_source", "partition": 1, "offset": 2,
    "timestamp": 3}, "seen": 1152921504606846976, "until": 8, "ends": {"0": 9}}
summary {"version": 1, "cleanup_policy": "compact,delete", "is_enabled": true, "partitions": 1,
    "records": 2, "closed_records": 3, "dirty_records": 4, "file_bytes": 5, "next_horizon_ms": 6,
    "oldest_event_ms": 7, "waiting": 8, "low_watermark_lag": 9, "drifted_settings": 10}
"""
ROWS = {"ebbtide.rows.records.0": "[[0, 10], [7, 3]]", "ebbtide.rows.records.1": "[[0, 1]]"}
SEEN = {"ebbtide.seen.records": "[1152921504606846976, 5]", "ebbtide.seen.batches": "[null, 0]"}
TABLES = {"records": TableSnapshots(2**60, 1), "batches": TableSnapshots(None, None)}
# Each is looked up: does it belong to the state table, or to the settings?
NAMES = """
    ebbtide.state.0.segments ebbtide.round ebbtide.merge ebbtide.append ebbtide.undo ebbtide.undone
    ebbtide.live.slice ebbtide.copied ebbtide.copied.slice ebbtide.replica.of ebbtide.replication
    ebbtide.tables ebbtide.tidied ebbtide.removing ebbtide.adopted.seen ebbtide.checksum
    ebbtide.layout.version ebbtide.rows.records.0 ebbtide.seen.records ebbtide.layout
    ebbtide.enabled kafka.cleanup.policy
""".split()


def collect() -> dict[str, Any]:
    """Return the properties as they are written again."""
    texts = dict(line.split(" ", 1) for line in TEXTS.replace("\n    ", " ").split("\n") if line)
    state = partitions() | work(texts) | counts()
    sealed = topic_state.sealed(state)
    assert topic_state.unsealed("log.a", sealed) == state
    settings: dict[str, str | None] = {"kafka.retention.ms": "7"}
    on_table = {name: str(text) for name, text in table_properties(NAME, settings).items()}
    assert topic_properties(NAME, on_table) == settings
    summary = parse_summary(texts["summary"])
    return {
        "state table": sealed,
        "belongs to the state table": [name for name in NAMES if topic_state.is_state(name)],
        "adopted table": {LAYOUT: Layout.parse(texts["layout"]).to_json(), **on_table},
        "summary in runs": summary and summary.to_json(),
    }


def partitions() -> dict[str, str]:
    words = PARTITIONS.split()
    given = {
        f"{topic_state.PREFIX}{name}": text
        for name, text in zip(words[::2], words[1::2], strict=True)
    }
    written: dict[str, str] = {}
    for partition, state in parse_states(given).items():
        written |= to_properties(partition, state)
    assert parse_states(written) == parse_states(given)
    return written


def work(texts: dict[str, str]) -> dict[str, str]:
    """Return a property for each kind of work in flight, and those that ended work leaves."""
    names = topic_state
    copied = CopiedTable.of({names.COPIED: texts["copied"]})
    replication = Replication.of({names.REPLICATION: texts["replication"]})
    assert copied
    assert replication
    append = direct_append._started({1: 0}, topic_of(partitions()))
    assert direct_append.begun_append(topic_of(append)) == {1}
    return {
        names.ROUND: CleaningRound.parse(texts["round"]).to_json(),
        names.MERGE: Merge.parse(texts["merge"]).to_json(),
        names.UNDO: Undo.parse(texts["undo"]).to_json(),
        names.SLICE: Slice.parse(texts["slice"]).to_property(),
        names.COPIED_SLICE: Slice.parse(texts["slice"]).to_property(),
        names.COPIED: copied.to_property(),
        names.REPLICATION: replication.to_json(),
        names.APPEND: str(append[names.APPEND]),
        names.TABLES: adopted_ids(SimpleNamespace(metadata=SimpleNamespace(uuid="t1"))),
        names.UNDONE: "u1",
        names.REPLICA_OF: "t1",
        names.ADOPTED_SEEN: "7",
        names.REMOVING: "true",
    }


def topic_of(properties: Any) -> Topic:
    return Topic(NAME, properties, None)  # type: ignore[arg-type]


def counts() -> dict[str, str]:
    """Return the properties of counted rows, and of snapshots left tidy."""
    rows = row_counts.told_rows(ROWS, "records")
    written = row_counts.rows_properties("records", rows, [0, 1])
    for table in ("records", "batches"):
        seen = row_counts.seen_of(SEEN, table)
        assert seen
        written |= row_counts.seen_property(table, seen)
    tidy = tidied(TABLES, TopicConfig())
    assert is_tidy(tidy, TopicConfig(), TABLES, 0)
    return {name: str(text) for name, text in written.items()} | tidy
