"""Kafka's log retention for logs kept in Apache Iceberg."""
