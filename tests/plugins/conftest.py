from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.dags.conftest import airflow_database
from tests.orchestration.conftest import lake

__all__ = ["airflow_database", "lake"]
