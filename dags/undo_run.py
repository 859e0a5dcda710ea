"""Undo a run that removed records from a topic: they come back, once somebody has approved it.

Later runs that removed from the same partitions go back with it, the last one first. `approve`
shows what would come back and what cannot, and asks. Records that were ingested since stay. Nothing
is then removed from what came back for 7 days, so change the setting that removed it meanwhile. The
low watermarks that the undo has lowered are published with the run that it undid. What an erasure
removed never comes back, nor what was truncated at the brokers. See docs/undo_run.md.

[Its form](plugin/ebbtide/ebbtide/forms/undo_run) suggests topics and runs that can be undone.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import UNDO_RUN

on_demand(UNDO_RUN, __doc__, __file__)  # an Airflow DAG
