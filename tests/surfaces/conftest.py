from tests.dags.conftest import airflow_database, lake, spark_submit

__all__ = ["airflow_database", "lake", "spark_submit"]
