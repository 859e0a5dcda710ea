"""Undo a run that removed records from a topic: restore the records, after an approval.

Later runs that removed records from the same partitions are undone too, the newest first. `approve`
shows which records can be restored and which cannot, and asks. Records ingested after the run are
retained. For 7 days after the undo, a pause blocks removals from these partitions: use that time to
change the setting that removed the records. The asset event that publishes the lowered low
watermarks names the undone run. An undo restores no erased keys, and no records that were deleted
on the brokers. See docs/undo_run.md.

[Its form](plugin/ebbtide/ebbtide/forms/undo_run) suggests topics and runs that can be undone.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import UNDO_RUN

on_demand(UNDO_RUN, __doc__, __file__)  # an Airflow DAG
