"""`ebbtide doctor`: all is well, or one check says what is not and what to do."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ebbtide.commands.checks import airflow_setup, installation
from ebbtide.commands.checks import lake as lake_checks
from ebbtide.lake import storage
from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.commands.conftest import Ebbtide
from tests.commands.test_commands import check
from tests.dags.conftest import airflow_database as airflow_database
from tests.lake_sandbox import ROOT, LakeSandbox, partition_result, state_of

Break = Callable[[LakeSandbox, pytest.MonkeyPatch], None]


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


def without_java(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(lake.home))


def without_settings(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBBTIDE_ROOT")
    monkeypatch.setattr("ebbtide.commands.environment._places", lambda: iter(()))


def without_a_jar(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(lake, "iceberg-spark-runtime", "iceberg-gone")


def with_an_old_package(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    (lake.home / "ebbtide.zip").unlink()


def without_a_catalog(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(lake, "lake.type                     jdbc", "lake.type  nessie")


def with_a_full_store(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    (lake.home / "lake" / "warehouse").write_text("no folder")


def with_a_slow_clock(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_clock", lambda: time.time() - 3600)


def without_a_connection(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "generic", "host": "h"}')


def without_the_pool(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.commands.checks.airflow_setup.SPARK_POOL", "ebbtide_spark")
    monkeypatch.setattr("ebbtide.commands.checks.airflow_setup.pool_slots", lambda: None)


def without_airflows_database(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    def ask() -> int:
        raise OperationalError("SELECT pool FROM slot_pool", {}, Exception("no such table"))

    monkeypatch.setattr("ebbtide.commands.checks.airflow_setup.pool_slots", ask)


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
    by_name = {check["name"]: check for check in ebbtide("doctor", "--json").document["checks"]}
    with create_session() as session:
        session.delete(session.merge(connection))
    assert by_name["connection"]["found"] == "spark://m:7077"
    assert by_name["connection"]["status"] == "ok"


def test_a_lake_with_topics_is_looked_into(healthy: LakeSandbox, ebbtide: Ebbtide) -> None:
    healthy.topic("log.a", {0: state_of()})
    healthy.records("log.a", [(0, 1)])
    healthy.run("log.a", "clean_log")
    by_name = {check["name"]: check for check in ebbtide("doctor", "--json").document["checks"]}
    assert by_name["topics"]["found"] == "1 of 1"
    assert by_name["storage"]["found"].endswith("/ebbtide/runs/data")
    for manifest in (healthy.home / "lake" / "warehouse" / "log" / "a").rglob("*-m0.avro"):
        Path(manifest).unlink()
    answer = ebbtide("doctor", "--json")
    by_name = {check["name"]: check for check in answer.document["checks"]}
    assert by_name["topics"]["status"] == "failed"
    assert "manifests of topic log.a" in by_name["topics"]["found"]
    assert answer.code == 1


def test_odd_timestamps_and_retention_that_removes_nothing_are_warnings(
    healthy: LakeSandbox, ebbtide: Ebbtide
) -> None:
    limited = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "86400000"}
    healthy.topic("log.b", {0: state_of()}, limited)
    healthy.records("log.b", [(0, 1)], event_ms=1_700_000_000_000)
    note = "segment 0 holds back 3 later segments"
    now = datetime.now(UTC)
    numbers = partition_result(timestamp_unit="seconds", note="timestamps look like seconds")
    healthy.run("log.b", "ingest_segments", now=now, partitions={0: numbers})
    healthy.run("log.b", "expire_segments", now=now, partitions={0: partition_result(note=note)})
    answer = ebbtide("doctor", "--json")
    by_name = {check["name"]: check for check in answer.document["checks"]}
    assert by_name["timestamps"]["status"] == by_name["retention"]["status"] == "warning"
    found = by_name["timestamps"]["found"]
    assert found == "log.b partition 0: timestamps look like seconds"
    assert by_name["retention"]["found"].startswith("log.b: retention.ms is 1 day, its oldest ")
    assert by_name["retention"]["found"].endswith(f"nothing was removed in 35 days: {note}")
    assert answer.code == 0
    healthy.run("log.b", "expire_segments", now=now, rows_removed=1)
    by_name = {check["name"]: check for check in ebbtide("doctor", "--json").document["checks"]}
    assert by_name["retention"]["status"] == "ok"


@pytest.mark.parametrize(
    ("breaks", "name", "found"),
    [
        (without_settings, "environment", "expected EBBTIDE_ROOT in the environment"),
        (without_java, "java", "does not run"),
        (without_a_jar, "jars", "missing: "),
        (with_an_old_package, "package", "no /"),
        (without_a_catalog, "catalog", "nessie"),
        (with_a_full_store, "storage", "warehouse"),
        (with_a_slow_clock, "clock", "s apart"),
        (without_a_connection, "connection", "'generic'; set AIRFLOW_CONN_SPARK_DEFAULT="),
        (without_the_pool, "pool", "no such pool"),
        (without_airflows_database, "pool", "database does not answer: no such table"),
    ],
)
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
    probes = [*installation.probes(), *lake_checks.probes(), *airflow_setup.probes()]
    with_make = {probe.name: probe.remedy for probe in probes if "make setup" in probe.remedy}
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
