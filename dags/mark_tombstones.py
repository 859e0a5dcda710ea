"""Mark the tombstones of a topic by its current rules.

The settings `ebbtide.tombstone.*` are the rules. A changed rule applies to records that are not
marked yet. With `from_offset`, records at or above that offset are marked again: the new rule can
mark and unmark them. Offsets that a cleaner round has covered are refused. `plan` counts the
records that would change. If records would move to the quarantine, `approve` asks first.

[Its form](plugin/ebbtide/ebbtide/forms/mark_tombstones) suggests topics and partitions.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.retention import MARK_TOMBSTONES

on_demand(MARK_TOMBSTONES, __doc__, __file__)  # an Airflow DAG
