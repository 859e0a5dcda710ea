"""Kafka's rules as plain Python on small values, without Spark or Airflow."""
