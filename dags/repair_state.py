"""Settle what somebody else did to a topic's rows or state, so that its nights go on.

A topic stands still once rows were added to its tables or removed from them by others, or its state
was edited. `plan` shows what was done, when, and what the repair would do about it; the plan is
kept. Without `plan_only`, `approve` asks then whether it may be executed, and the repair does what
the plan says or nothing. See docs/repair_state.md.

[Its form](plugin/ebbtide/ebbtide/forms/repair_state) suggests topics and partitions.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import REPAIR_STATE

on_demand(REPAIR_STATE, __doc__, __file__)  # an Airflow DAG
