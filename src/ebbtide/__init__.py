"""Kafka's log retention for logs kept in Apache Iceberg."""

__version__ = "0.1.0"
