from tests.tables.fixtures import cluster as cluster
from tests.tables.fixtures import kill_at as kill_at
from tests.tables.fixtures import meanwhile as meanwhile
from tests.tables.fixtures import sandbox as sandbox
from tests.tables.planned import jobs as jobs
