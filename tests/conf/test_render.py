"""The jars that Spark's configuration names."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.lake_sandbox import ROOT

render = runpy.run_path(str(ROOT / "conf" / "render.py"))["render"]


def test_jars_of_ones_own_come_after_those_of_set_up(tmp_path: Path) -> None:
    for name in ("jars/b.jar", "extra-jars/a.jar", "extra-jars/readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = render("${EBBTIDE_JARS} ${EBBTIDE_CLASS_PATH}", {"EBBTIDE_HOME": str(tmp_path)})
    names = [f"{tmp_path}/jars/b.jar", f"{tmp_path}/extra-jars/a.jar"]
    assert found == f"{','.join(names)} {':'.join(names)}"


def test_without_jars_of_set_up_nothing_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "extra-jars").mkdir()
    (tmp_path / "extra-jars" / "a.jar").touch()
    with pytest.raises(KeyError, match="run `make setup`"):
        render("${EBBTIDE_JARS}", {"EBBTIDE_HOME": str(tmp_path)})
