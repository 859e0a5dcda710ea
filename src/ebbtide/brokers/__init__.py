"""Kafka's brokers: admin client, producer, and Spark's Kafka source."""
