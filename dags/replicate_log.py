"""Copy new records of topics to their table replicas.

A topic's `ebbtide.replicas` names its replicas. Each table replica gets the records and batches
that it lacks, the primary's settings and its log start offsets. The primary retains tombstones and
markers until every replica has them, so run this DAG more often than every `delete.retention.ms`.
No Spark application starts if no replica lacks anything. The DAG is scheduled if
EBBTIDE_REPLICATE_SCHEDULE is a cron expression.

[Its form](plugin/ebbtide/ebbtide/forms/replicate_log) suggests the lake's topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import REPLICATE_LOG

on_demand(REPLICATE_LOG, __doc__, __file__)  # an Airflow DAG
