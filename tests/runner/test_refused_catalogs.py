"""Each job refuses a catalog that Airflow's side does not open, before it opens it itself."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ebbtide.errors import CAUSES_FILE, ExitCode
from ebbtide.runner.application import run_job
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.surfaces.command_line import COMMANDS, ON_TOPIC, PLAN, REQUEST
from tests.tables.logs import Message, write_log

JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
BY_PLAN = ("clean_log", "delete_records", "erase_keys", "undo_run")
REFUSED = {
    "type": ("nessie", "expected spark.sql.catalog.lake.type in spark-defaults.conf to be one of"),
    "uri": ("jdbc:mariadb://h/d", "expected spark.sql.catalog.lake.uri in spark-defaults.conf to"),
}


def words(command: Mapping[str, str | None], at: Mapping[str, Path]) -> list[str]:
    """Return the command's arguments, with these files in the place of its own."""
    given = {**command, **{name: str(path) for name, path in at.items() if name in command}}
    return [word for name, value in given.items() for word in (name, value or "")]


@pytest.mark.parametrize("setting", REFUSED)
def test_each_job_refuses_it_by_the_settings_name(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    lake = LakeSandbox(tmp_path / "home")
    session = lake.session
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: session)
    value, said = REFUSED[setting]
    session.conf.set(f"spark.sql.catalog.lake.{setting}", value)
    request, causes = tmp_path / "request.json", tmp_path / "causes"
    request.write_text(REQUEST)
    log = write_log(tmp_path / "log", "a", [[Message("k", "v")]], {})
    files = {"--request-file": request, "--source": log, "--target": tmp_path / "exported"}
    monkeypatch.setenv(CAUSES_FILE, str(causes))
    monkeypatch.setenv("EBBTIDE_KAFKA_CONNECTIONS", '{"k": {"bootstrap.servers": "127.0.0.1:1"}}')
    for job in JOBS:
        main = importlib.import_module(f"jobs.{job}").main
        commands = [*COMMANDS.get(job, [ON_TOPIC]), *([PLAN] if job in BY_PLAN else [])]
        if job == "ingest_table":  # it looks for the topics that are copies
            commands = [*commands, {n: v for n, v in ON_TOPIC.items() if n != "--topic"}]
        for command in commands:
            if "--topics-pattern" in command:  # the broker is asked first
                continue
            causes.unlink(missing_ok=True)
            code = run_job(job, lambda main=main, options=command: main(words(options, files)))
            assert code == ExitCode.FAILED, (job, command)
            ((_, kind, message),) = map(json.loads, causes.read_text().splitlines())
            assert (kind, message[: len(said)]) == ("ConfigurationError", said), (job, command)
    assert list((lake.home / "lake").iterdir()) == []
