"""Stop managing an adopted table: remove ebbtide's properties and state, and keep its rows.

[Its form](plugin/ebbtide/ebbtide/forms/abandon_table) suggests the lake's topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import ABANDON_TABLE

on_demand(ABANDON_TABLE, __doc__, __file__)  # an Airflow DAG
