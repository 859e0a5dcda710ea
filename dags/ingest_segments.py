"""Ingest new records from a broker's log directory.

A run reads the records below the source's high watermark that the tables do not have yet. Without
new records it changes nothing. It refuses a log that is corrupt, was truncated, or does not
continue the table. `report_run` names such a log, and all other topics are ingested. The DAG is
scheduled if EBBTIDE_INGEST_SCHEDULE is a cron expression.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_segments) suggests clusters and topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import INGEST_SEGMENTS

on_demand(INGEST_SEGMENTS, __doc__, __file__)  # an Airflow DAG
