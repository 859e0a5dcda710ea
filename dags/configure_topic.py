"""Set a topic's retention configuration; every value is checked before anything changes.

Names and ranges are Kafka's, and without an explicit limit nothing is ever removed. `plan` shows
what the next night would remove; where it would remove something, `approve` asks before the
settings are set. Every other property goes into the two lists: `kafka.*` are Kafka's
configurations, `ebbtide.*` are ours, and one is Iceberg's, `history.expire.max-snapshot-age-ms`.

[Its form](plugin/ebbtide/ebbtide/forms/configure_topic) suggests topics and settings.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import CONFIGURE_TOPIC

on_demand(CONFIGURE_TOPIC, __doc__, __file__)  # an Airflow DAG
