"""Keep a table that others write as a topic, which `nightly_retention` compacts from then on.

Run it with `plan_only` first: the task's log shows whose layout the table has, which column is what
of a record, and which of Kafka's rules hold for it. Columns are recognised for Spark's Kafka
source, Redpanda, AutoMQ and Iceberg's sink for Kafka Connect; name those that are not. A table that
holds several topics gives as many, `<namespace>.<table>@<topic>`.

[Its form](plugin/ebbtide/ebbtide/forms/adopt_table) suggests tables.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import ADOPT_TABLE

on_demand(ADOPT_TABLE, __doc__, __file__)  # an Airflow DAG
