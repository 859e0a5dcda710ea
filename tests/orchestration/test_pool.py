"""The pool of Spark slots in Airflow's database."""

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.orchestration.pool import PoolListener, make_pool, slots
from tests import airflow_env  # noqa: F401  before anything of Airflow


@pytest.fixture
def pools() -> None:
    """Airflow's tables, without our pool."""
    from airflow.models.pool import Pool
    from airflow.utils import db
    from airflow.utils.session import create_session

    db.initdb()
    with create_session() as session:
        session.query(Pool).filter(Pool.pool == "ebbtide_spark").delete()


def found() -> dict[str, int]:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        return {pool.pool: pool.slots for pool in session.query(Pool)}


@pytest.mark.usefixtures("pools")
def test_a_missing_pool_is_made_and_keeps_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    for slots_asked_for in ("3", "2"):
        monkeypatch.setenv("EBBTIDE_SPARK_SLOTS", slots_asked_for)
        assert make_pool() == 3
        assert found()["ebbtide_spark"] == 3


@pytest.mark.usefixtures("pools")
def test_a_component_that_starts_makes_it() -> None:
    """By the plugin, as Airflow finds it in its plugins folder."""
    from airflow.jobs.job import Job

    assert "ebbtide_spark" not in found()
    Job()  # what each component makes of itself first
    assert "ebbtide_spark" in found()


@pytest.mark.usefixtures("pools")
def test_a_task_that_starts_leaves_the_database_alone() -> None:
    """Airflow forbids it, and writes each attempt into the task's log."""
    from airflow.sdk.execution_time.task_runner import TaskRunnerMarker

    PoolListener().on_starting(TaskRunnerMarker())
    assert "ebbtide_spark" not in found()


@pytest.mark.parametrize("text", ["0", "-1", "two"])
def test_slots_are_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("EBBTIDE_SPARK_SLOTS", text)
    message = f"^expected a number of at least 1 in EBBTIDE_SPARK_SLOTS, found '{text}'$"
    with pytest.raises(ConfigurationError, match=message):
        slots()
