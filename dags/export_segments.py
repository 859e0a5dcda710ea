"""Write a topic's tables as the segment files of a broker's log directory, to restore from them.

The files are of format v2 and hold what the tables hold: records, delete horizons, transaction
markers, segments. Nothing changes in the lake. The target is filled as a whole or not at all; one
that holds other files is refused. docs/restore.md says how a broker takes it over.

[Its form](plugin/ebbtide/ebbtide/forms/export_segments) suggests topics and partitions.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import EXPORT_SEGMENTS

on_demand(EXPORT_SEGMENTS, __doc__, __file__)  # an Airflow DAG
