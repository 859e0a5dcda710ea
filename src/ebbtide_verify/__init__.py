"""Check a certificate of erasure without Spark and Airflow."""
