"""Lakes with little logs, and jobs that are killed at their commits."""

from tests.tables.driver_rows import driver_rows as driver_rows
from tests.tables.fixtures import cluster as cluster
from tests.tables.fixtures import kafka_jars as kafka_jars
from tests.tables.fixtures import kill_at as kill_at
from tests.tables.fixtures import meanwhile as meanwhile
from tests.tables.fixtures import sample as sample
from tests.tables.fixtures import sandbox as sandbox
from tests.tables.planned import jobs as jobs
