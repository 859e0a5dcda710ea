"""Delete the records of partitions below an offset, in the lake and in every replica.

What Kafka's DeleteRecords does (KIP-107): the log start offset moves up, never down, and the
answer is the low watermark, the least log start offset over all replicas. Say up to where in one
of four ways. `approve` then shows what would go and asks: without an approval nothing does. The
records leave the tables at once, and the disk when `expire_snapshots` has passed the age that the
table keeps snapshots for.

[Its form](plugin/ebbtide/ebbtide/forms/delete_records) suggests topics, partitions and connections.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import DELETE_RECORDS

on_demand(DELETE_RECORDS, __doc__, __file__)  # an Airflow DAG
