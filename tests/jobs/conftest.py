"""Jobs that keep plans, and how many rows Spark hands to the driver."""

from tests.tables.bench import bench as bench
from tests.tables.bench import empty as empty
from tests.tables.driver_rows import driver_rows as driver_rows
from tests.tables.planned import jobs as jobs
