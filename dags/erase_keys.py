"""Erase keys of a compacted topic: each gets a tombstone, which supersedes all records before it.

`plan` counts the records of the keys, and `approve` asks before a tombstone is written. Where
somebody writes the topic (`ebbtide.source`), tombstones are produced to it and arrive by the next
ingest, for which the run waits: trigger `ingest_topic` unless it is scheduled. Only a topic without
a writer gets them appended to its tables. A cleaner round follows if Kafka's would begin. What
became of each key, and from when it is out of the table and off the disk, is in
`lake.ebbtide.erasures`. See docs/erase_keys.md.

[Its form](plugin/ebbtide/ebbtide/forms/erase_keys) suggests topics and connections.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import ERASE_KEYS

on_demand(ERASE_KEYS, __doc__, __file__)  # an Airflow DAG
