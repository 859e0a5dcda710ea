"""Hold records of a topic for a case: what a rule removes is copied first, until the hold ends.

The log goes on as Kafka's. Held records that leave it are kept in `lake.<cluster>_held.<topic>`.
Making a hold and widening it act at once; `approve` asks before one is ended or narrowed. See
docs/holds.md.

[Its form](plugin/ebbtide/ebbtide/forms/hold_records) suggests topics, partitions and holds.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import HOLD_RECORDS

on_demand(HOLD_RECORDS, __doc__, __file__)  # an Airflow DAG
