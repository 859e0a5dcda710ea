"""Each command of docs/tutorial.md runs as it stands there, and prints what the page shows.

Ids and times of a run are those of this run; `...` stands for any text, alone on a line for lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run; later commands name it as the page does.
ID = re.compile(r"[a-z_]+-\d{8}-[0-9a-f]{8}|command_line__[0-9T:.+-]+")
ENV = ".ebbtide/conf/airflow.env"
# Made by `make setup`, and the same for each lake.
MADE = ("jars", "ivy", "classes.jsa", "classes.jsa.stamp", "done")


class Step(NamedTuple):
    """A command of the page, and the output that the page shows."""

    command: str
    output: str


def steps(page: str) -> Iterator[Step]:
    """Yield the commands in their order."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Step(command, output)


def shown_in(output: str, shown: str) -> dict[str, str] | None:
    """Return the ids of the page with those of this run; None if the output is another one."""
    known: list[str] = []
    pattern = ""
    for line in shown.splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*?"
            continue
        words = []
        for word in line.split():
            if ID.fullmatch(word):
                words.append(f"({ID.pattern})")
                known.append(word)
            else:
                words.append(re.escape(word).replace(r"\.\.\.", ".*?"))
        pattern += r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n"
    found = re.fullmatch(pattern, output if output.endswith("\n") else f"{output}\n")
    return None if found is None else dict(zip(known, found.groups(), strict=True))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with a lake of its own, set up as far as that is the same for all."""
    project = tmp_path / "ebbtide"
    tracked = subprocess.run(
        ["git", "ls-files", "--", ".", ":!tests", ":!benchmarks", ":!docs"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in tracked.split("\n"):
        if name and (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name)
    (project / ".venv").symlink_to(ROOT / ".venv")
    home = project / ".ebbtide"
    home.mkdir()
    for name in MADE:
        made = ROOT / ".ebbtide" / name
        if made.is_dir() and name != "done":
            (home / name).symlink_to(made)
        elif made.is_dir():
            shutil.copytree(made, home / name)
            (home / name / "airflow").unlink(missing_ok=True)
        else:
            shutil.copy2(made, home / name)
    return project


def run(command: str, project: Path) -> str:
    """Return what a command prints, as it does in a shell of the reader."""
    outer = {name: value for name, value in os.environ.items() if not _is_of_tests(name)}
    # The environment is a link, which would lead `ebbtide` to the lake beside the real one.
    with_env = f"set -a; [ ! -e {ENV} ] || . {ENV}; set +a; {command}"
    done = subprocess.run(
        ["bash", "-c", with_env], cwd=project, env=outer, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _is_of_tests(name: str) -> bool:
    return name.startswith(("AIRFLOW", "EBBTIDE", "SPARK", "PYSPARK", "PYTEST", "MAKE", "MFLAGS"))


@pytest.mark.long
def test_each_command_prints_what_the_page_shows(project: Path) -> None:
    ids: dict[str, str] = {}

    def own(found: re.Match[str]) -> str:
        return ids[found[0]]

    for step in steps(TUTORIAL.read_text()):
        command = ID.sub(own, step.command)
        output = run(command, project)
        of_step = shown_in(output, step.output)
        assert of_step is not None, f"$ {command}\n{output}\n-- expected:\n{step.output}"
        ids.update(of_step)


@pytest.mark.parametrize(
    ("output", "shown", "ids"),
    [
        ("a  b\n", "a b\n", {}),
        ("a b\n", "a c\n", None),
        ("x\ny\nb\n", "...\nb\n", {}),
        ("b\nx\n", "...\nb\n", None),
        ("now 5 s\n", "now ...\n", {}),
        ("plan: p-20260102-0123abcd\n", "plan: p-20261128-bfff207e\n", {
            "p-20261128-bfff207e": "p-20260102-0123abcd"
        }),
        ("plan: none\n", "plan: p-20261128-bfff207e\n", None),
    ],
)  # fmt: skip
def test_output_is_compared(output: str, shown: str, ids: dict[str, str] | None) -> None:
    assert shown_in(output, shown) == ids


def test_the_page_has_its_commands() -> None:
    commands = [step.command for step in steps(TUTORIAL.read_text())]
    assert commands[0] == "make run"
    assert len(commands) > 5
