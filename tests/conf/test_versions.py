"""The versions that the package asks for, and those that are tested together."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.lake_sandbox import ROOT

PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;]+)", re.MULTILINE)
LOCKED = dict(PIN.findall((ROOT / "requirements.txt").read_text()))


def test_the_constraints_are_the_lock_without_its_hashes() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == [f"{name}=={version}" for name, version in LOCKED.items()]


def test_the_package_asks_for_one_version_of_spark_and_takes_those_that_are_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {item.name: item.specifier for item in map(Requirement, project["dependencies"])}
    # They share a directory: pip would take the newest of each that its range allows.
    assert asked["pyspark"] == asked["pyspark-client"]
    assert [specifier.operator for specifier in asked["pyspark"]] == ["=="]
    for name, specifier in asked.items():
        assert LOCKED[name] in specifier, name
