"""Copy new rows of tables that only their owner may write into ebbtide's own topics.

The first time, name the table and the topic, with `plan_only`: the task's log shows the table's
layout and the number of rows to copy. Later runs need no names: without topics, a run copies new
rows into all topics that were filled this way. The DAG is scheduled if
EBBTIDE_INGEST_TABLE_SCHEDULE is a cron expression. docs/ingest_table.md covers late rows.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_table) suggests tables and topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import INGEST_TABLE

on_demand(INGEST_TABLE, __doc__, __file__)  # an Airflow DAG
