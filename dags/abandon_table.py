"""Take back that a table is a topic: the properties on it and the state beside it go, rows stay.

[Its form](plugin/ebbtide/ebbtide/forms/abandon_table) suggests the lake's topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import ABANDON_TABLE

on_demand(ABANDON_TABLE, __doc__, __file__)  # an Airflow DAG
