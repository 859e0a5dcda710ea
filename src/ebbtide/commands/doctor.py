"""Check this installation, and say how to fix what is wrong.

Checks Java, jars, the class archive, the catalog, the storage (by writing and deleting a small
file), clocks, the connection to Spark and the pool. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from ebbtide.commands.answer import Answer
from ebbtide.commands.checks import INSTALLATION_CHECKS, LAKE_CHECKS, Check, Status
from ebbtide.errors import ExitCode
from ebbtide.local.progress import working


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the command always runs all checks."""


def answer(args: argparse.Namespace) -> Answer:
    """Return a line for each check, and a remedy below each check that did not pass."""
    with working("checking the installation"):
        from ebbtide.commands import airflow_setup  # Airflow takes seconds to import

        groups = (INSTALLATION_CHECKS, LAKE_CHECKS, airflow_setup.CHECKS)
        checks = [check for group in groups for check in group.make()]
    has_failed = any(check.status is Status.FAILED for check in checks)
    document = {"is_healthy": not has_failed, "checks": [asdict(check) for check in checks]}
    return Answer(_text(checks), document, ExitCode.FAILED if has_failed else ExitCode.DONE)


def _text(checks: Sequence[Check]) -> str:
    width = max(len(check.name) for check in checks)
    return "\n".join(line for check in checks for line in _lines(check, width))


def _lines(check: Check, width: int) -> list[str]:
    start = f"{check.status:<8}{check.name:<{width + 2}}"
    if check.status is Status.OK:
        return [f"{start}{check.found}"]
    return [
        f"{start}expected {check.expected}, found {check.found}",
        f"{'':<{len(start)}}to do: {check.remedy}",
    ]
