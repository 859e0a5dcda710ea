"""Export a topic as the segment files of a broker's log directory, to recover the Kafka topic.

The files have message format v2, with the records, delete horizons, transaction markers and
segments of the tables. The lake does not change. The export writes the whole target or nothing, and
refuses a target that has other files. docs/restore.md shows how a broker loads the files.

[Its form](plugin/ebbtide/ebbtide/forms/export_segments) suggests topics and partitions.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.sources import EXPORT_SEGMENTS

on_demand(EXPORT_SEGMENTS, __doc__, __file__)  # an Airflow DAG
