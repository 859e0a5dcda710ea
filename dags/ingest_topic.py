"""Ingest new records of live topics from their brokers.

A run reads each log up to the end that the brokers report when it starts. It ingests each record
exactly once, even if a run is killed. A topic's first run creates its table, with the brokers'
segment sizes. Broker settings that remove records are only reported: use `configure_topic` to adopt
them. The DAG is scheduled if EBBTIDE_INGEST_TOPIC_SCHEDULE is a cron expression. The defaults of
its form come from EBBTIDE_INGEST_TOPIC_CONNECTION, EBBTIDE_INGEST_TOPIC_CLUSTER and
EBBTIDE_INGEST_TOPIC_PATTERN.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_topic) suggests connections, clusters and topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import INGEST_TOPIC

on_demand(INGEST_TOPIC, __doc__, __file__)  # an Airflow DAG
