"""Airflow, and nightly runs on the sample log, on one machine: `make up` and `make run`."""
