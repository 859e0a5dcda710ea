"""docs/deploy.md's steps, taken one by one, bring ebbtide into an Airflow that exists already."""

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

STEPS = re.compile(r"^\| [^|]+ \| `(.+)` \|$", re.MULTILINE)
OWN_DAG = """
from airflow.sdk import dag

@dag(schedule=None)
def somebody_elses(): ...

somebody_elses()
"""
UV = ROOT / ".venv" / "bin" / "uv"
LOCKED = ("apache-airflow", "apache-airflow-providers-apache-spark")

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
            **trusted(os.environ),
        }

    def install(self) -> None:
        """Airflow and its provider for Spark, one DAG, and a database."""
        subprocess.run(
            [UV, "venv", "-q", "--seed", "--python", "3.11", "venv"], cwd=self.home, check=True
        )
        lines = (ROOT / "requirements.txt").read_text()
        wanted = [re.search(rf"^{name}==\S+", lines, re.MULTILINE) for name in LOCKED]
        packages = [match[0] for match in wanted if match]
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


def test_the_steps_bring_ebbtide_into_an_airflow_that_exists(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path)
    airflow.install()
    checkout = ("conf", "dags", "jobs", "plugins", "src")
    for folder in checkout:
        shutil.copytree(ROOT / folder, tmp_path / "checkout" / folder)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path / "checkout")
    (tmp_path / "ebbtide").mkdir()
    (tmp_path / "ebbtide" / "ivy").symlink_to(
        EBBTIDE_HOME / "ivy"
    )  # what Maven Central sent before

    steps = STEPS.findall((ROOT / "docs" / "deploy.md").read_text())
    assert len(steps) == 11
    for step in steps:
        airflow.run(step)

    airflow.run("airflow dags reserialize")
    listed = json.loads(airflow.run("airflow dags list --output json").splitlines()[-1])
    ours = {file.stem for file in (ROOT / "dags").glob("*.py")}
    assert {dag["dag_id"] for dag in listed} == ours | {"somebody_elses"}
    assert "ebbtide" in airflow.run("airflow plugins --output json")

    conf = {"source": str(SAMPLE), "cluster": CLUSTER, "now": FIRST_NIGHT}
    airflow.run(f"airflow dags test ingest_segments -c '{json.dumps(conf)}'")
    with open_lake(tmp_path / "ebbtide" / "conf" / "spark-defaults.conf") as lake:
        assert lake.topic_names() == [f"{CLUSTER}.{topic}" for topic in TOPICS]
