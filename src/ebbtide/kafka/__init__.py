"""Kafka's decisions as plain Python on small values; knows neither Spark nor Airflow."""
