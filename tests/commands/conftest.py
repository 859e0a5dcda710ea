import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ebbtide.commands.__main__ import main
from tests.orchestration.conftest import lake as lake


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Its one JSON document."""
        document: dict[str, Any] = json.loads(self.out)
        return document


Ebbtide = Callable[..., Said]


@pytest.fixture
def ebbtide(capsys: pytest.CaptureFixture[str]) -> Ebbtide:
    """Runs a command in this process."""

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(arguments)
        return Said(code, *capsys.readouterr())

    return run
