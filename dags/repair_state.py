"""Repair a topic after a foreign change of its rows or state, so that jobs accept it again.

A topic is blocked if another tool or person added rows to its tables, removed rows, or edited its
state. `plan` shows that foreign change and its time, shows what the repair would do, and stores the
plan. Without `plan_only`, `approve` then asks whether to execute it. The repair executes the plan
exactly, or changes nothing. See docs/repair_state.md.

[Its form](plugin/ebbtide/ebbtide/forms/repair_state) suggests topics and partitions.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import REPAIR_STATE

on_demand(REPAIR_STATE, __doc__, __file__)  # an Airflow DAG
