"""A lake, a broker for ingest_topic, and another process in the same lake."""

from tests.tables.fixtures import kafka_jars as kafka_jars
from tests.tables.fixtures import sandbox as sandbox
