"""Erase keys of a compacted topic: a tombstone for each key supersedes all its earlier records.

`plan` counts the records of the keys, and `approve` asks before a tombstone is written. If the
topic has a source (`ebbtide.source`), the tombstones are produced to the live topic. The run waits
until an ingest has copied them to the tables: trigger `ingest_topic` unless it is scheduled. If a
topic has no source, the tombstones can be appended to its tables. A cleaner round follows if
Kafka's log cleaner would start one. `lake.ebbtide.erasures` reports each key, and when its records
are out of the table and off the disk. At the end, every byte of the topic's tables is searched for
the keys, and a certificate of what was found is signed. See docs/erase_keys.md.

[Its form](plugin/ebbtide/ebbtide/forms/erase_keys) suggests topics and connections.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import ERASE_KEYS

on_demand(ERASE_KEYS, __doc__, __file__)  # an Airflow DAG
