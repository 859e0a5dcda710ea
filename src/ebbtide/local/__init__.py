"""Airflow and a night of the sample log on one machine: `make up` and `make run`."""
