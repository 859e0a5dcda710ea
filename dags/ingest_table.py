"""Copy the new rows of tables that others write, and nobody else may, to topics of ours.

Name the table and a topic once, with `plan_only` first: the task's log shows whose layout the table
has, and how many rows would come. Later runs know it: with no topic named, all that have been
copied to before get what is new. Scheduled when EBBTIDE_INGEST_TABLE_SCHEDULE holds a cron
expression. docs/adopt.md says what becomes of rows that come late.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_table) suggests tables and topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import INGEST_TABLE

on_demand(INGEST_TABLE, __doc__, __file__)  # an Airflow DAG
