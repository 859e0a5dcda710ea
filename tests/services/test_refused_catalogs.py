"""Catalogs that ebbtide refuses, or that refuse ebbtide: a job says why, and nothing is written."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ebbtide.errors import (
    AccessDeniedError,
    CommitConflictError,
    ConfigurationError,
    ExitCode,
    UnavailableError,
)
from ebbtide.iceberg.own_tables import create_own
from ebbtide.lake.catalog_settings import read_defaults
from ebbtide.ledger.own_tables import RUNS
from ebbtide.runner.outages import explained
from tests.lake_sandbox import EBBTIDE_HOME, LakeSandbox
from tests.runner.submit import submit
from tests.services.cells import CLUSTER, FIRST_NIGHT, SAMPLE, CellSandbox
from tests.services.mariadb import PASSWORD, MariaDb
from tests.services.nessie import Nessie
from tests.services.postgresql import PostgreSql
from tests.services.proxy import Proxy, Refusal
from tests.services.rest_catalog import RestCatalog
from tests.services.s3_api import S3Api
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest

pytestmark = pytest.mark.services

# Where a jar is named for the driver, and what separates two.
CLASS_PATHS = {"spark.driver.extraClassPath": ":", "spark.jars": ","}


@pytest.fixture(scope="module")
def mariadb(directory: Path) -> Iterator[MariaDb]:
    server = MariaDb(directory)
    try:
        with server:
            yield server
    finally:
        server.remove()


def change_jars(lake: CellSandbox, change: Callable[[list[str]], list[str]]) -> None:
    """Let the lake's jobs have other jars."""
    file = lake.home / "conf" / "spark-defaults.conf"
    defaults = read_defaults(file)
    with file.open("a") as lines:
        for name, separator in CLASS_PATHS.items():
            jars = change(defaults[name].split(separator))
            lines.write(f"{name} {separator.join(jars)}\n")


def refusal_of_ingest(lake: LakeSandbox) -> str:
    """Return the line by which `ingest_segments` refuses; nothing but that is an error."""
    where = ("--source", str(SAMPLE), "--cluster", CLUSTER, "--now", FIRST_NIGHT)
    done = submit(lake, "ingest_segments", *where)
    said = done.stdout + done.stderr
    assert done.returncode == ExitCode.FAILED, said
    assert "Traceback" not in said, said
    (line,) = re.findall(r" ERROR ingest_segments: failed: (.*)", said)
    return str(line)


def test_mariadb_is_refused_and_stays_empty(mariadb: MariaDb, tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    lake = CellSandbox(
        tmp_path / "home", {**mariadb.settings(), "warehouse": f"file://{warehouse}"}
    )
    (driver,) = (EBBTIDE_HOME / "refused-jars").glob("mariadb-java-client-*.jar")
    change_jars(lake, lambda jars: [*jars, str(driver)])
    said = refusal_of_ingest(lake)
    assert said.startswith(
        "ConfigurationError: expected spark.sql.catalog.lake.uri in spark-defaults.conf to start "
        "with jdbc:sqlite: or jdbc:postgresql:, found jdbc:mariadb://127.0.0.1:"
    )
    assert PASSWORD not in said
    assert mariadb.tables() == []
    assert not warehouse.exists()


def test_a_wrong_password_is_a_sentence(postgresql: PostgreSql, tmp_path: Path) -> None:
    lake = CellSandbox(
        tmp_path / "home", {**postgresql.settings("postgres"), "jdbc.password": "wrong"}
    )
    assert refusal_of_ingest(lake) == (
        "AccessDeniedError: expected a catalog and a store that these credentials may use, found "
        "org.postgresql.util.PSQLException: FATAL: password authentication failed for user "
        '"ebbtide". '
        "Correct the catalog's settings in spark-defaults.conf, or grant the credentials access"
    )


def test_a_database_that_is_not_there_is_a_sentence(postgresql: PostgreSql, tmp_path: Path) -> None:
    lake = CellSandbox(tmp_path / "home", postgresql.settings("nowhere"))
    assert refusal_of_ingest(lake) == (
        "ConfigurationError: expected the database that the catalog's uri in spark-defaults.conf "
        'names, found: FATAL: database "nowhere" does not exist. Create it, or correct the uri'
    )


def test_a_missing_driver_is_a_sentence(tmp_path: Path) -> None:
    uri = "jdbc:postgresql://127.0.0.1:1/catalog"
    lake = CellSandbox(tmp_path / "home", {"type": "jdbc", "uri": f"{uri}?password=secret"})
    change_jars(lake, lambda jars: [jar for jar in jars if "postgresql" not in jar])
    assert refusal_of_ingest(lake) == (
        "ConfigurationError: expected the Java driver of the catalog's database, found none for "
        f"{uri}. Put the driver's jar into .ebbtide/extra-jars and run `make setup`, or name it "
        "in spark.jars (docs/stores.md)"
    )


GZIPPED = b"\x1f\x8b"


class Unnamed(Proxy):
    """A REST catalog that does not say that it is Nessie."""

    def changed(self, body: bytes) -> bytes:
        """The configuration without what names it."""
        if not body.startswith(GZIPPED):
            return body
        text = gzip.decompress(body)
        return gzip.compress(text.replace(b"nessie.is-nessie-catalog", b"is-a-catalog"))


NESSIE = (
    "expected a catalog that refuses conflicting commits and lets jobs expire snapshots, found "
    "Nessie behind spark.sql.catalog.lake.uri in spark-defaults.conf: it can accept two first "
    "commits"
)
STALE = "expected catalog lake to refuse a commit that was prepared on an older version of a table"
SIGNING = (
    "expected catalog settings that ebbtide can follow, found s3.remote-signing-enabled = true. "
)


@pytest.mark.parametrize(
    ("signs", "is_named", "said"),
    [
        pytest.param(True, True, NESSIE, id="as it comes"),
        pytest.param(False, True, NESSIE, id="without remote signing"),
        pytest.param(True, False, SIGNING, id="any server that signs requests"),
        pytest.param(False, False, STALE, id="any server that takes a stale commit"),
    ],
)
def test_nessie_is_refused_and_stays_empty(
    s3: S3Api, tmp_path: Path, signs: bool, is_named: bool, said: str
) -> None:
    with Nessie(tmp_path, s3.endpoint, signs=signs) as nessie:
        of_nessie = nessie.settings()
        with Unnamed(of_nessie["uri"]) as unnamed:
            uri = of_nessie["uri"] if is_named else f"{unnamed.endpoint}/iceberg"
            settings = {**s3.settings(), **of_nessie, "uri": uri, "warehouse": "lake"}
            refused = refusal_of_ingest(CellSandbox(tmp_path / "home", settings))
        assert refused.startswith(f"ConfigurationError: {said}")
        assert nessie.entries() == []


class Answer(Refusal):
    """An error as a REST catalog words it."""

    def body(self) -> bytes:
        """As the specification says."""
        error = {"message": "not today", "type": self.code, "code": self.status}
        return json.dumps({"error": error}).encode()


class RefusingCatalog(Proxy):
    """A proxy that gives an answer of its own to each POST whose path fits."""

    def __init__(self, behind: str, path: str, answer: Answer) -> None:
        super().__init__(behind)
        self.path, self.answer = re.compile(path), answer
        self.asked = 0

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Refuse what fits."""
        is_refused = method == "POST" and bool(self.path.search(path))
        self.asked += is_refused
        return self.answer if is_refused else None


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    """A REST catalog; Spark has begun without one, since its first settings hold for all lakes."""
    home = tmp_path_factory.mktemp("rest")
    assert LakeSandbox(home / "plain").session
    with RestCatalog(home, f"file://{home}/warehouse") as server:
        yield server


REJECTED = "expected a catalog and a store that accept ebbtide's requests, found "
DENIED = "expected a catalog and a store that these credentials may use, found "
OUTAGE = "expected an answer of the catalog and its storage, found "


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (Answer(401, "NotAuthorizedException"), AccessDeniedError, f"{DENIED}.*NotAuthorized"),
        (Answer(403, "ForbiddenException"), AccessDeniedError, f"{DENIED}.*Forbidden"),
        (Answer(400, "BadRequestException"), ConfigurationError, f"{REJECTED}.*not today"),
        (Answer(400, "IllegalArgumentException"), ConfigurationError, f"{REJECTED}.*not today"),
        (Answer(418, "Teapot"), ConfigurationError, f"{REJECTED}.*code: 418.*not today"),
        (Answer(500, "InternalServerError"), UnavailableError, f"{OUTAGE}.*not today"),
        (Answer(502, "BadGateway"), UnavailableError, f"{OUTAGE}.*not today"),
    ],
)
def test_what_a_rest_catalog_answers_to_a_creation_is_a_sentence(
    rest: RestCatalog, tmp_path: Path, answer: Answer, error: type[Exception], said: str
) -> None:
    with RefusingCatalog(rest.settings()["uri"], "/tables$", answer) as catalog:
        lake = CellSandbox(tmp_path / "home", {"type": "rest", "uri": catalog.endpoint})
        with pytest.raises(Exception, match="not today") as raised:
            create_own(lake.session, RUNS)
        assert catalog.asked
    explanation = explained(raised.value)
    assert type(explanation) is error
    assert re.match(said, str(explanation))


def test_an_error_at_each_commit_is_not_another_writer(rest: RestCatalog, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "t", [[Message("a", "1")]], {})
    uri = rest.settings()["uri"]
    answer = Answer(500, "InternalServerError")
    with RefusingCatalog(uri, "/namespaces/broken/tables/", answer) as catalog:
        lake = CellSandbox(tmp_path / "home", {"type": "rest", "uri": catalog.endpoint})
        message = (
            "^expected an answer of the catalog to commit ingest_records, found: .*not today.*If "
            "this error comes back, see the catalog's log$"
        )
        with pytest.raises(CommitConflictError, match=message):
            ingest(lake.session, "broken.t", log, FIRST_MS)
        assert catalog.asked
