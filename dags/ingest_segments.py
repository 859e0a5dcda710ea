"""Bring what is new in a broker's log directory into the lake.

Only what is below the source's high watermark and not held yet is read; a run that finds nothing
new changes nothing. A foreign, truncated or corrupt log is refused and named by `report_run`, the
other topics are ingested. Scheduled when EBBTIDE_INGEST_SCHEDULE holds a cron expression.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_segments) suggests clusters and topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import INGEST_SEGMENTS

on_demand(INGEST_SEGMENTS, __doc__, __file__)  # an Airflow DAG
