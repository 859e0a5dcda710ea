"""Delete the records of partitions below an offset, in the lake and in every replica.

This is Kafka's DeleteRecords (KIP-107). It advances the log start offset, and never lowers it. The
answer is the low watermark: the lowest log start offset of all replicas. There are four ways to
choose the offset. `approve` shows the records that would be removed, and asks: without an approval
nothing is removed. The records are then out of the tables. They are off the disk once
`expire_snapshots` has expired the snapshots that still have them.

[Its form](plugin/ebbtide/ebbtide/forms/delete_records) suggests topics, partitions and connections.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import DELETE_RECORDS

on_demand(DELETE_RECORDS, __doc__, __file__)  # an Airflow DAG
