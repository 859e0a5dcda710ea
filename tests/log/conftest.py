from tests.kafka.conftest import kafka_jars

__all__ = ["kafka_jars"]
