"""The documents of `ebbtide COMMAND --json`."""

from __future__ import annotations

import json
import os
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ebbtide.commands.__main__ import main
from tests.surfaces.stored import shape

# In place of Spark's commands: a query with one row, and a job that has stored a plan.
SPARK_SQL = """echo '{"offset": 1}'"""
SPARK_SUBMIT = """while [ "$1" != --plan-file ]; do shift; done
printf 'a plan\\n\\nplan: clean_log-20260101-0123abcd\\n' > "$2"
"""


def collect(topic: str, folder: Path) -> dict[str, Any]:
    """Return the shape of each document, of a lake in which jobs have worked on the topic."""
    for name, text in {"spark-sql": SPARK_SQL, "spark-submit": SPARK_SUBMIT}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o700)
    with patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
        documents = {
            **{name: document(name) for name in ("doctor", "report", "runs", "topics")},
            "key": document("key", topic, "a"),
            "key, of an unknown topic": document("key", "log.none", "a"),
            "plan": document("plan", "clean_log", "--topic", topic),
            "sql": document("sql", "SELECT 1"),
        }
    checks = [check["name"] for check in documents["doctor"]["checks"]]
    shapes = {name: shape(printed) for name, printed in documents.items()}
    return {**shapes, "checks of doctor": checks}


def document(command: str, *arguments: str) -> Any:
    """Return the one document that a command prints."""
    with redirect_stdout(StringIO()) as printed:
        main([command, "--json", *arguments])
    return json.loads(printed.getvalue())
