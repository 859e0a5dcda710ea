"""Airflow's side: DAGs, operators, reports and pages. Nothing here imports Spark."""
