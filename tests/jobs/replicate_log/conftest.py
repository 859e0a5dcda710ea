"""Each topic here has a replica in a catalog beside the lake."""

from tests.jobs.replicate_log.replicas import name as name
from tests.jobs.replicate_log.replicas import sandbox as sandbox
