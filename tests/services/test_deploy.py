"""docs/deploy.md's steps, taken one by one, bring ebbtide into an Airflow that exists already.

At the newest versions that pip finds, at those that are tested together, and at the lowest that the
package's ranges allow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ebbtide.lake.reader import open_lake
from tests.lake_sandbox import EBBTIDE_HOME, ROOT
from tests.services.cells import CLUSTER, FIRST_NIGHT, SAMPLE, TOPICS

PAGE = (ROOT / "docs" / "deploy.md").read_text()
STEPS = re.findall(r"^\| [^|]+ \| `(.+)` \|$", PAGE, re.MULTILINE)
INSTALL = STEPS[0]
CONSTRAINED = next(iter(re.findall(r"`(python -m pip install -c .+?)`", PAGE)))
OWN_DAG = """
from airflow.sdk import dag

@dag(schedule=None)
def somebody_elses(): ...

somebody_elses()
"""
UV = ROOT / ".venv" / "bin" / "uv"
THERE_BEFORE = ("apache-airflow", "apache-airflow-providers-apache-spark")
CONSTRAINTS = (ROOT / "constraints.txt").read_text()

pytestmark = pytest.mark.services


class Airflow:
    """An Airflow of its own, which knows nothing of ebbtide."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            "HOME": str(home),
            "PATH": f"{home}/venv/bin:/usr/bin:/bin",
            "AIRFLOW_HOME": f"{home}/airflow",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "EBBTIDE_ROOT": f"{home}/checkout",
            "EBBTIDE_HOME": f"{home}/ebbtide",
            "SPARK_CONF_DIR": f"{home}/ebbtide/conf",
            # Spark's package takes a minute to build, each time that it is not cached.
            "PIP_CACHE_DIR": str(EBBTIDE_HOME / "pip-cache"),
            **trusted(os.environ),
        }

    def install(self, constraints: str) -> None:
        """Airflow and its provider for Spark, as these lines name them, one DAG, and a database."""
        subprocess.run(
            [UV, "venv", "-q", "--seed", "--python", "3.11", "venv"], cwd=self.home, check=True
        )
        pins = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", constraints, re.MULTILINE))
        packages = [f"{name}=={pins[name]}" for name in THERE_BEFORE]
        python = self.home / "venv" / "bin" / "python"
        subprocess.run([UV, "pip", "install", "-q", "--python", python, *packages], check=True)
        dags = self.home / "airflow" / "dags"
        dags.mkdir(parents=True)
        (dags / "somebody_elses.py").write_text(OWN_DAG)
        self.run("airflow db migrate")

    def run(self, command: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


def trusted(environment: Mapping[str, str]) -> dict[str, str]:
    """Which certificates and Java this machine uses."""
    names = ("SSL_CERT_FILE", "PIP_CERT", "JAVA_HOME", "JAVA_TOOL_OPTIONS")
    return {name: environment[name] for name in names if name in environment}


def lowest() -> str:
    """The lowest versions that the package's ranges allow, with all that they need."""
    ranges = [UV, "pip", "compile", "-q", "--resolution", "lowest-direct", "pyproject.toml"]
    done = subprocess.run(
        [*ranges, "--python-version", "3.11"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


@pytest.fixture
def airflow(tmp_path: Path) -> Airflow:
    """An Airflow beside a checkout; what Maven Central sent before is there."""
    for folder in ("conf", "dags", "jobs", "plugins", "src"):
        shutil.copytree(ROOT / folder, tmp_path / "checkout" / folder)
    for file in ("constraints.txt", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path / "checkout")
    (tmp_path / "ebbtide").mkdir()
    (tmp_path / "ebbtide" / "ivy").symlink_to(EBBTIDE_HOME / "ivy")
    return Airflow(tmp_path)


def test_the_steps_bring_ebbtide_into_an_airflow_that_exists(airflow: Airflow) -> None:
    airflow.install(CONSTRAINTS)
    take_the_steps(airflow, INSTALL)


def test_the_constraints_bring_the_versions_that_are_tested_together(airflow: Airflow) -> None:
    airflow.install(CONSTRAINTS)
    take_the_steps(airflow, CONSTRAINED)


def test_the_lowest_versions_that_the_ranges_allow_work_together(airflow: Airflow) -> None:
    constraints = lowest()
    airflow.install(constraints)
    (airflow.home / "checkout" / "constraints.txt").write_text(constraints)
    take_the_steps(airflow, CONSTRAINED)


def take_the_steps(airflow: Airflow, install: str) -> None:
    """Install by this command, take the other steps, and ingest and clean a log."""
    assert len(STEPS) == 11
    for step in (install, *STEPS[1:]):
        airflow.run(step)
    airflow.run("python -m pip check")
    airflow.run("ebbtide doctor")

    airflow.run("airflow dags reserialize")
    listed = json.loads(airflow.run("airflow dags list --output json").splitlines()[-1])
    ours = {file.stem for file in (ROOT / "dags").glob("*.py")}
    assert {dag["dag_id"] for dag in listed} == ours | {"somebody_elses"}
    assert "ebbtide" in airflow.run("airflow plugins --output json")

    conf = {"source": str(SAMPLE), "cluster": CLUSTER, "now": FIRST_NIGHT}
    airflow.run(f"airflow dags test ingest_segments -c '{json.dumps(conf)}'")
    airflow.run(f"airflow dags test nightly_retention -c '{json.dumps({'now': FIRST_NIGHT})}'")
    with open_lake(airflow.home / "ebbtide" / "conf" / "spark-defaults.conf") as lake:
        assert lake.topic_names() == [f"{CLUSTER}.{topic}" for topic in TOPICS]
        runs = lake.runs()
    assert all(run.succeeded for run in runs)
    assert {run.job for run in runs} >= {"ingest_segments", "mark_tombstones", "clean_log"}
