"""Airflow's environment in tests: a home of its own; import this before anything of Airflow."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(tempfile.mkdtemp(prefix="ebbtide-airflow-"))
SPARK_CONNECTION = '{"conn_type":"spark","host":"local[2]"}'

atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(ROOT / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(ROOT / "plugins"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__SENSITIVE_VAR_CONN_NAMES="keys",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__LOGGING__LOGGING_LEVEL="INFO",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
    AIRFLOW_CONN_SPARK_DEFAULT=SPARK_CONNECTION,
    SPARK_LOCAL_IP="127.0.0.1",
)
