"""Airflow: the operator, XCom, the report and the page. Knows no Spark."""
