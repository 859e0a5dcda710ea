"""`ebbtide doctor`: all is well, or one check says what is not and what to do."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ebbtide.commands import airflow_setup, checks
from ebbtide.lake import reader
from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.commands.conftest import Ebbtide, Said
from tests.commands.test_commands import check
from tests.dags.conftest import airflow_database as airflow_database
from tests.lake_sandbox import ROOT, LakeSandbox, partition_result, state_of

Break = Callable[[LakeSandbox, pytest.MonkeyPatch], object]


@pytest.fixture
def healthy(lake: LakeSandbox) -> LakeSandbox:
    """An installation in which all is well."""
    from ebbtide.orchestration.pool import make_pool

    lake.package()
    make_pool()
    return lake


def rewrite(lake: LakeSandbox, old: str, new: str) -> None:
    """Change a line of Spark's settings."""
    defaults = lake.home / "conf" / "spark-defaults.conf"
    text = defaults.read_text()
    assert old in text
    defaults.write_text(text.replace(old, new))


def without_settings(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBBTIDE_ROOT")
    monkeypatch.setattr("ebbtide.commands.environment._places", lambda: iter(()))


def without_airflows_database(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    def ask() -> int:
        raise OperationalError("SELECT pool FROM slot_pool", {}, Exception("no such table"))

    monkeypatch.setattr(airflow_setup, "pool_slots", ask)


GENERIC = '{"conn_type": "generic", "host": "h"}'
TYPE = "lake.type                     jdbc"
# What is broken, the check that fails first, and what it finds.
BROKEN: list[tuple[Break, str, str]] = [
    (without_settings, "environment", "expected EBBTIDE_ROOT in the environment"),
    (lambda lake, patch: patch.setenv("JAVA_HOME", str(lake.home)), "java", "does not run"),
    (lambda lake, _: rewrite(lake, "iceberg-spark-runtime", "iceberg-gone"), "jars", "missing: "),
    (lambda lake, _: (lake.home / "ebbtide.zip").unlink(), "package", "no /"),
    (lambda lake, _: rewrite(lake, TYPE, "lake.type  nessie"), "catalog", "nessie"),
    (lambda lake, _: fill_store(lake), "storage", "warehouse"),
    (
        lambda _, patch: patch.setattr(reader, "_clock", lambda: time.time() - 3600),
        "clock",
        "s apart",
    ),
    (
        lambda _, patch: patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", GENERIC),
        "connection",
        "'generic'. Set AIRFLOW_CONN_SPARK_DEFAULT=",
    ),
    (
        lambda _, patch: patch.setattr(airflow_setup, "pool_slots", lambda: None),
        "pool",
        "no such pool",
    ),
    (without_airflows_database, "pool", "no answer from Airflow's database: no such table"),
]


def fill_store(lake: LakeSandbox) -> None:
    (lake.home / "lake" / "warehouse").write_text("no folder")


def by_name(answer: Said) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in answer.document["checks"]}


def test_all_is_well(healthy: LakeSandbox, ebbtide: Ebbtide) -> None:
    answer = ebbtide("doctor", "--json")
    checks = check(answer.document, "doctor", "checks")
    assert [c["name"] for c in checks if c["status"] != "ok"] == []
    assert answer.document["is_healthy"]
    assert answer.code == 0
    assert not list(healthy.home.rglob("ebbtide-doctor-*"))


def test_a_connection_in_airflows_database_is_found(
    healthy: LakeSandbox, ebbtide: Ebbtide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `airflow connections add` of docs/deploy.md makes it."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with create_session() as session:
        connection = Connection(conn_id="spark_default", conn_type="spark", host="spark://m:7077")
        session.add(connection)
    checks = by_name(ebbtide("doctor", "--json"))
    with create_session() as session:
        session.delete(session.merge(connection))
    assert checks["connection"]["found"] == "spark://m:7077"
    assert checks["connection"]["status"] == "ok"


def test_a_lake_with_topics_is_looked_into(healthy: LakeSandbox, ebbtide: Ebbtide) -> None:
    healthy.topic("log.a", {0: state_of()})
    healthy.records("log.a", [(0, 1)])
    healthy.run("log.a", "clean_log")
    checks = by_name(ebbtide("doctor", "--json"))
    assert checks["topics"]["found"] == "1 of 1"
    assert checks["storage"]["found"].endswith("/ebbtide/runs/data")
    for manifest in (healthy.home / "lake" / "warehouse" / "log" / "a").rglob("*-m0.avro"):
        Path(manifest).unlink()
    answer = ebbtide("doctor", "--json")
    checks = by_name(answer)
    assert checks["topics"]["status"] == "failed"
    assert "manifests of topic log.a" in checks["topics"]["found"]
    assert answer.code == 1


def test_odd_timestamps_and_retention_that_removes_nothing_are_warnings(
    healthy: LakeSandbox, ebbtide: Ebbtide
) -> None:
    limited = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "86400000"}
    healthy.topic("log.b", {0: state_of()}, limited)
    healthy.records("log.b", [(0, 1)], event_ms=1_700_000_000_000)
    note = "segment 0 blocks 3 later segments"
    now = datetime.now(UTC)
    numbers = partition_result(timestamp_unit="seconds", note="timestamps look like seconds")
    healthy.run("log.b", "ingest_segments", now=now, partitions={0: numbers})
    healthy.run("log.b", "expire_segments", now=now, partitions={0: partition_result(note=note)})
    answer = ebbtide("doctor", "--json")
    checks = by_name(answer)
    assert checks["timestamps"]["status"] == checks["retention"]["status"] == "warning"
    found = checks["timestamps"]["found"]
    assert found == "log.b partition 0: timestamps look like seconds"
    assert checks["retention"]["found"].startswith("log.b: retention.ms is 1 day, the oldest ")
    assert checks["retention"]["found"].endswith(f"nothing was removed in 35 days: {note}")
    assert answer.code == 0
    healthy.run("log.b", "expire_segments", now=now, rows_removed=1)
    checks = by_name(ebbtide("doctor", "--json"))
    assert checks["retention"]["status"] == "ok"


@pytest.mark.parametrize(("breaks", "name", "found"), BROKEN)
def test_what_is_wrong_is_named_with_its_remedy(
    healthy: LakeSandbox,
    ebbtide: Ebbtide,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Break,
    name: str,
    found: str,
) -> None:
    breaks(healthy, monkeypatch)
    answer = ebbtide("doctor", "--json")
    failed = {c["name"]: c for c in answer.document["checks"] if c["status"] == "failed"}
    first = next(iter(failed.values()))
    assert first["name"] == name
    assert found in first["found"]
    assert answer.code == 1
    lines = ebbtide("doctor").out.splitlines()
    (line,) = [number for number, line in enumerate(lines) if line.startswith(f"failed  {name} ")]
    assert lines[line + 1].strip() == f"to do: {first['remedy']}"


def test_what_to_do_without_make_are_steps_of_the_page() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    steps = set(re.findall(r"^\| [^|]+ \| `(.+)` \|$", page, re.MULTILINE))
    groups = (checks.INSTALLATION_CHECKS, checks.LAKE_CHECKS, airflow_setup.CHECKS)
    remedies = {name: remedy for group in groups for name, remedy in group.remedies.items()}
    with_make = {name: remedy for name, remedy in remedies.items() if "make setup" in remedy}
    assert with_make.keys() >= {"pyspark", "jars", "package", "class archive", "catalog", "pool"}
    for name, remedy in with_make.items():
        without_make = set(re.findall("`([^`]+)`", remedy)) - {"make setup"}
        assert without_make or "docs/deploy.md" in remedy, name
        assert without_make <= steps, name


def test_a_missing_archive_is_a_warning(healthy: LakeSandbox, ebbtide: Ebbtide) -> None:
    (healthy.home / "classes.jsa.stamp").unlink()
    answer = ebbtide("doctor", "--json")
    warned = [c["name"] for c in answer.document["checks"] if c["status"] == "warning"]
    assert warned == ["class archive"]
    assert answer.code == 0
