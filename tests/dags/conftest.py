import pytest

from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.dags.fake_spark import FakeSpark
from tests.lake_sandbox import LakeSandbox
from tests.orchestration.conftest import lake

__all__ = ["lake"]


@pytest.fixture(scope="session", autouse=True)
def airflow_database() -> None:
    """Airflow's tables in the tests' own AIRFLOW_HOME."""
    from airflow.utils import db

    db.initdb()


@pytest.fixture
def spark_submit(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """Replaces spark-submit: jobs succeed unless told otherwise, and write their rows in `runs`."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    fake = FakeSpark(lake)
    monkeypatch.setattr(SparkSubmitHook, "submit", lambda *given: fake.submit(*given))
    return fake
