"""Set a topic's retention settings, and show first what the next nightly run would remove.

Names and ranges are Kafka's. Without an explicit limit, nothing is ever removed. All values are
checked before the first one is set. If the next nightly run would remove records because of the new
settings, `approve` asks before they are set. `kafka.*` are Kafka's topic configs, `ebbtide.*` are
ebbtide's settings, and `history.expire.max-snapshot-age-ms` is Iceberg's.

[Its form](plugin/ebbtide/ebbtide/forms/configure_topic) suggests topics and settings.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import CONFIGURE_TOPIC

on_demand(CONFIGURE_TOPIC, __doc__, __file__)  # an Airflow DAG
