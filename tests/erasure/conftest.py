from tests.tables.bench import empty as empty
from tests.tables.planned import jobs as jobs
