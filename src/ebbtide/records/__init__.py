"""Bytes to batches and records, and back, without Spark or Airflow."""
