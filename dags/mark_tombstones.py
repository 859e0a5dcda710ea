"""Mark the tombstones of a topic by the rules that it has now.

`ebbtide.tombstone.*` say what makes one. A changed rule is for what is not marked yet; with
`from_offset`, records from there on are marked again, and those that are none by the new rule are
unmarked. What is cleaned already stays as it is: lower offsets are refused. `plan` shows how many
records would change; where some would go to the quarantine, `approve` asks first.

[Its form](plugin/ebbtide/ebbtide/forms/mark_tombstones) suggests topics and partitions.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.retention import MARK_TOMBSTONES

on_demand(MARK_TOMBSTONES, __doc__, __file__)  # an Airflow DAG
