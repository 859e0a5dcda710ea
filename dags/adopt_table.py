"""Apply Kafka's retention to a table that another tool writes, from the next nightly run on.

Run it with `plan_only` first: the task's log shows the table's layout, the column of each part of a
record, and how exactly each of Kafka's rules works on it. ebbtide recognises the columns of Spark's
Kafka source, Redpanda, AutoMQ and Iceberg's sink for Kafka Connect. Name all other columns. A table
with the records of several topics becomes several topics, named `<namespace>.<table>@<topic>`.

[Its form](plugin/ebbtide/ebbtide/forms/adopt_table) suggests tables.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import ADOPT_TABLE

on_demand(ADOPT_TABLE, __doc__, __file__)  # an Airflow DAG
