"""Bytes to batches and records, and back; knows neither Spark nor Airflow."""
