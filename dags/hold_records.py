"""Hold records of a topic for a legal case: they are copied before a rule removes them.

A hold does not change the log: rules remove the same records as without it. The copies are in
`lake.<cluster>_held.<topic>` until the hold ends. A new or wider hold takes effect immediately.
`approve` asks before a hold is ended or narrowed. See docs/holds.md.

[Its form](plugin/ebbtide/ebbtide/forms/hold_records) suggests topics, partitions and holds.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import HOLD_RECORDS

on_demand(HOLD_RECORDS, __doc__, __file__)  # an Airflow DAG
