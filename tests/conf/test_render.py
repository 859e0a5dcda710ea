"""Templates filled in, and the jars that Spark's configuration names."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ebbtide.lake.catalog_settings import read_defaults
from tests.lake_sandbox import ROOT

RENDER = runpy.run_path(str(ROOT / "conf" / "render.py"))
render, main = RENDER["render"], RENDER["main"]


def test_jars_of_ones_own_come_after_those_of_set_up(tmp_path: Path) -> None:
    for name in ("jars/b.jar", "extra-jars/a.jar", "extra-jars/readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    rendered = render("${EBBTIDE_JARS} ${EBBTIDE_CLASS_PATH}", {"EBBTIDE_HOME": str(tmp_path)})
    names = [f"{tmp_path}/jars/b.jar", f"{tmp_path}/extra-jars/a.jar"]
    assert rendered == f"{','.join(names)} {':'.join(names)}"


def test_without_jars_of_set_up_nothing_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "extra-jars").mkdir()
    (tmp_path / "extra-jars" / "a.jar").touch()
    with pytest.raises(KeyError, match="run `make setup`"):
        render("${EBBTIDE_JARS}", {"EBBTIDE_HOME": str(tmp_path)})


def test_templates_become_one_file_which_spark_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = "back\\slash \\u0041#!=:"
    monkeypatch.setenv("PASSWORD", password)
    for name, line in {"first.conf": "a ${PASSWORD}\n", "second.conf": "b c\n"}.items():
        (tmp_path / name).write_text(line)
    target = tmp_path / "conf"
    assert main([str(tmp_path / "first.conf"), str(tmp_path / "second.conf"), str(target)]) == 0
    assert read_defaults(target / "first.conf") == {"a": password, "b": "c"}


def test_a_template_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "catalog-none.conf"), str(tmp_path)]) == 1
    assert "catalog-none.conf: No such file" in capsys.readouterr().err
