"""Open Spark SQL on the lake, or run one statement.

Table names need no catalog: `SELECT * FROM log.flights__latest`. With --json, the statement is
required and must be a query. The document then has one object per row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from ebbtide.commands.answer import Answer, missing_command
from ebbtide.errors import RequestError
from ebbtide.local.progress import working
from ebbtide.settings.names import CATALOG

COMMAND = ("spark-sql", "--conf", f"spark.sql.defaultCatalog={CATALOG}")
HEADER = ("--conf", "spark.sql.cli.print.header=true")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the statement."""
    parser.add_argument("statement", nargs="?", help="SQL to run [a prompt, until `quit;`]")


def answer(args: argparse.Namespace) -> Answer:
    """Return a statement's rows. Without a statement, replace this process by a prompt."""
    if args.json:
        return _rows(args.statement)
    if args.statement is None:
        _take_over([*COMMAND, *HEADER])
    code, output = _run([*COMMAND, *HEADER, "-e", args.statement])
    return Answer(output.rstrip("\n"), {}, code)


def _rows(statement: str | None) -> Answer:
    if not statement:
        raise RequestError("expected a query with --json, found none. Give one in quotes")
    query = f"SELECT to_json(struct(*)) FROM ({statement.rstrip().rstrip(';')})"
    code, output = _run([*COMMAND, "-e", query])
    rows = [json.loads(line) for line in output.splitlines() if line] if code == 0 else []
    return Answer("", {"rows": rows, "exit_code": code}, code)


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run Spark's shell, and return its exit code and stdout. If it fails, print its log."""
    try:
        with working("starting Spark"):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise missing_command(COMMAND[0]) from None
    if done.returncode:
        print(done.stderr.rstrip(), file=sys.stderr)
    return done.returncode, done.stdout


def _take_over(command: list[str]) -> None:
    """Replace this process by Spark's shell."""
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        raise missing_command(COMMAND[0]) from None
