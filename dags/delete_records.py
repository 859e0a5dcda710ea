"""Remove the records below an offset from a topic's partitions and from every replica.

This is Kafka's DeleteRecords (KIP-107). It advances the log start offset, and never lowers it. The
answer is the low watermark: the lowest log start offset of all replicas. Give an offset, a time, an
age or consumer groups. `approve` shows the records that would be removed, and asks: without an
approval nothing is removed. After the approval the run removes the records from the tables. They
are off the disk once `expire_snapshots` has replaced their files and then expired the snapshots
that have them.

[Its form](plugin/ebbtide/ebbtide/forms/delete_records) suggests topics, partitions and connections.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import DELETE_RECORDS

on_demand(DELETE_RECORDS, __doc__, __file__)  # an Airflow DAG
