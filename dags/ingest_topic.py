"""Bring what is new in live topics into the lake, read from their brokers.

The log is taken up to where the brokers have it when they are asked, once and exactly, whatever
stops a run. A topic's table is made by its first run, with the brokers' segment sizes; settings
that remove are only reported, and taken over by `configure_topic` once somebody confirms them.
Scheduled when EBBTIDE_INGEST_TOPIC_SCHEDULE holds a cron expression. The form then shows
EBBTIDE_INGEST_TOPIC_CONNECTION, EBBTIDE_INGEST_TOPIC_CLUSTER and EBBTIDE_INGEST_TOPIC_PATTERN.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_topic) suggests connections, clusters and topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import INGEST_TOPIC

on_demand(INGEST_TOPIC, __doc__, __file__)  # an Airflow DAG
