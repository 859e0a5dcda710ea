"""What every test needs before Spark starts in its process."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ebbtide.ledger.erasure_secrets import SECRETS, created
from ebbtide.runner.application import STRICT
from ebbtide.runner.signing import SIGNING_KEY, new_signing_key
from tests.commit_points import CommitPoints
from tests.durations import (
    QUARTERS,
    Durations,
    dearest_first,
    file_of,
    is_short_case,
    only_of_quarter,
    quarter_of,
    read_stored,
)
from tests.fresh_seed import FreshSeeds
from tests.resumed import Resumed, mark_of_sources

# Spark's Python workers run in this environment, whatever `python3` is on the path, and import only
# what executors have.
os.environ["PYSPARK_PYTHON"] = str(Path(__file__).resolve().parent / "executors" / "python")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ[STRICT] = "yes"
# The processes of a run have the secrets of topics, and the key that signs, in common.
if SECRETS not in os.environ:
    _keys = Path(tempfile.mkdtemp(prefix="ebbtide-keys-"))
    atexit.register(shutil.rmtree, _keys, ignore_errors=True)
    os.environ[SECRETS] = str(_keys / "secrets")
    os.environ[SIGNING_KEY] = str(_keys / "signing.pem")
    created(_keys / "signing.pem", new_signing_key)

# A busy machine must not fail a test, and a landing must not depend on the examples drawn.
settings.register_profile("ebbtide", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ebbtide")


OF_AIRFLOW = ("tests/dags/", "tests/plugins/", "tests/surfaces/test_lake_surfaces.py")

# What helpers assert is shown in full when it fails, as it is of tests.
pytest.register_assert_rewrite(
    "tests.tables", "tests.jobs", "tests.runner", "tests.nights", "tests.services"
)

# Lakes with little logs, jobs that are killed at their commits, and one Chromium of each process.
pytest_plugins = ["tests.tables.fixtures", "tests.browser.chromium"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ebbtide")
    group.addoption(
        "--quarter", help=f"run a quarter of the files, 0 to {QUARTERS - 1}, or by `git`"
    )
    group.addoption("--store-durations", action="store_true", help="store what each file costs")
    group.addoption("--resume", metavar="FILE", help="leave out the test files that this one names")


def pytest_configure(config: pytest.Config) -> None:
    """Fail a whole run in which no test killed a job at some commit point."""
    plugins = config.pluginmanager
    plugins.register(CommitPoints(Path(__file__).parent), "commit points")
    plugins.register(Durations(is_to_store=config.option.store_durations), "durations")
    plugins.register(FreshSeeds(), "fresh seeds")
    if config.option.resume:
        plugins.register(Resumed(Path(config.option.resume), mark_of_sources()), "resumed")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which quarter runs."""
    asked = config.option.quarter
    return None if asked is None else f"quarter {quarter_of(asked)} of 0 to {QUARTERS - 1}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the case that `long(but=CASE)` names in `make test`."""
    item.own_markers[:] = [mark for mark in item.own_markers if not is_short_case(item.name, mark)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process a file at a time, and one process all files that need Airflow.

    It takes Airflow 20 CPU seconds to begin in a process.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = file_of(nodeid)
            return "airflow" if file.startswith(OF_AIRFLOW) else file

    return ByFile(config, log)


@pytest.hookimpl(trylast=True)  # once `-m` has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that cost most, of a quarter of them if one is asked for."""
    stored = read_stored()
    if config.option.quarter is not None:
        left_out = set(only_of_quarter(items, quarter_of(config.option.quarter), stored))
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    dearest_first(items, stored)
