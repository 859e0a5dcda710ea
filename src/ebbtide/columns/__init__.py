"""Kafka's rules on whole Arrow columns; knows no Spark."""
