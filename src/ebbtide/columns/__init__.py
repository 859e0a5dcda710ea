"""Kafka's rules on whole Arrow columns, without Spark."""
