"""Bring the replicas of topics up to their primaries.

`ebbtide.replicas` of a topic names them. Each gets the records and batches that it lacks, the
primary's settings and its log start offsets; tombstones and markers that a replica has not reached
are held back at the primary until then, so run this more often than `delete.retention.ms` passes.
Topics without replicas, and those whose replicas hold everything, start no Spark. Scheduled when
EBBTIDE_REPLICATE_SCHEDULE holds a cron expression.

[Its form](plugin/ebbtide/ebbtide/forms/replicate_log) suggests the lake's topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import REPLICATE_LOG

on_demand(REPLICATE_LOG, __doc__, __file__)  # an Airflow DAG
