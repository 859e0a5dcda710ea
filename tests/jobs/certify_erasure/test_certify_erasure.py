"""A key is erased, searched for in every byte, and what was found is signed and checked."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError, ExitCode
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.own_tables import append_own
from ebbtide.jobs.certify_erasure import search
from ebbtide.jobs.certify_erasure import stage as job
from ebbtide.jobs.certify_erasure.stage import plan_certificate
from ebbtide.ledger.plans import PLAN_EVENTS, PLANS, Plan, PlanEvent, PlanStep, new_plan_id
from ebbtide.runner.signing import SIGNING_KEY
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import KEYS
from ebbtide_verify import hmac_of
from ebbtide_verify.__main__ import CONTRADICTED, HOLDS
from jobs import certify_erasure, clean_log, erase_keys, expire_snapshots
from tests.jobs.certify_erasure.office import ALICE, BOB, SECRET, Office, open_office
from tests.tables.adopted import SPARK_COLUMNS, Record, adopt, source_frame, spark_table
from tests.tables.bench import Bench
from tests.tables.clocks import let_newest_be_ahead
from tests.tables.fixtures import Meanwhile
from tests.tables.nights import at
from tests.tables.planned import Jobs


@pytest.fixture
def office(empty: Bench, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Office:
    return open_office(empty, jobs, tmp_path, monkeypatch)


def test_a_key_is_found_until_its_last_byte_is_gone(office: Office) -> None:
    erasure = office.erase()
    says = office.certify("--erasure", erasure)
    assert says["found"]
    assert {hit["kind"] for hit in says["found"]} == {"data file"}
    assert {hit["sought"] for hit in says["found"]} == {hmac_of(SECRET, ALICE.encode())}
    assert says["asked"]["by"] == "ann"
    assert says["asked"]["reason"] == "request 17"
    assert office.rows()[-1]["result"] == "found"
    assert office.verify(ALICE) == HOLDS

    assert office.run(clean_log, nights=1) == ExitCode.DONE
    assert office.run(expire_snapshots, nights=1) == ExitCode.DONE
    says = office.certify("--erasure", erasure)
    assert says["found"] == says["unread"] == []
    assert office.rows()[-1]["result"] == "not found"
    assert office.verify(ALICE) == HOLDS
    assert "Airflow's database" in {item["what"] for item in says["out_of_reach"]}
    assert ALICE not in json.dumps(office.says())


def test_offsets_are_found_until_their_files_are_gone(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS)
    asked = ("--partition", "0", "--first-offset", "1", "--end-offset", "2")
    says = office.certify(*asked)
    assert says["sought"]["keys"] == []
    assert says["sought"]["rows"]["first"] == 1
    assert [(hit["kind"], hit["sought"]) for hit in says["found"]] == [("data file", "rows")]
    assert office.verify() == HOLDS
    first = Path(says["found"][0]["object"].removeprefix("file://"))
    first.rename(first.with_name("moved.parquet"))
    says = office.certify(*asked)
    assert [hit["kind"] for hit in says["found"]] == ["in no snapshot"]
    assert "it is missing" in {item["why"] for item in says["out_of_reach"]}
    beyond = ("--partition", "0", "--first-offset", "5", "--end-offset", "9")
    assert office.certify(*beyond)["found"] == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), "expected keys, a file of keys or a range of offsets, found none"),
        (("--partition", "0"), "found partition=0, first_offset=None, end_offset=None"),
        (
            ("--partition", "0", "--first-offset", "3", "--end-offset", "3"),
            "expected a partition, a first offset and a larger end offset",
        ),
    ],
)
def test_what_is_no_search(
    office: Office, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], expected: str
) -> None:
    monkeypatch.delenv(KEYS)
    assert office.run(certify_erasure, *asked) == ExitCode.FAILED
    assert expected in str(office.jobs.last_run().error)


def test_keys_and_a_file_of_keys(office: Office) -> None:
    assert office.run(certify_erasure, "--keys-file", "/keys") == ExitCode.FAILED
    assert "expected either keys or a file of keys, found both" in str(office.jobs.last_run().error)


def test_keys_are_those_of_the_erasure(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    assert office.run(certify_erasure, "--erasure", "none") == ExitCode.FAILED
    assert "found none, which erased no key" in str(office.jobs.last_run().error)
    erasure = office.erase()
    monkeypatch.setenv(KEYS, BOB)
    assert office.run(certify_erasure, "--erasure", erasure) == ExitCode.FAILED
    error = str(office.jobs.last_run().error)
    assert (
        f"expected the 1 keys that run {erasure} erased, found 1 keys, of which it erased 0"
        in error
    )


def test_an_adopted_table_with_numbers_as_keys(
    empty: Bench, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text in Iceberg's name of a partition is encoded, once more in the URI of its file."""
    spark, name = empty.spark, TopicName(empty.name.cluster, "orders")
    columns = SPARK_COLUMNS.replace("key binary", "key bigint") + ", city string"
    spark_table(spark, str(name), more="PARTITIONED BY (city)", columns=columns)
    rows = source_frame(spark, [Record(0, "4711"), Record(1, "12"), Record(2, "7")])
    rows = rows.withColumn("key", F.col("key").cast("string").cast("bigint"))
    rows = rows.withColumn("city", F.lit("São Paulo / 100 %")).coalesce(1)
    rows.writeTo(name.records_table).append()
    adopt(spark, str(name))

    def certified(*keys: str) -> Any:
        monkeypatch.setenv(KEYS, "\n".join(keys))
        assert jobs.run(certify_erasure, "--topic", str(name), "--now", NOW) == ExitCode.DONE
        table = spark.table("lake.ebbtide.certificates").where(f"topic = '{name}'")
        (row,) = table.orderBy(F.desc("number")).limit(1).collect()
        return json.loads(base64.b64decode(json.loads(row["envelope"])["payload"]))["predicate"]

    says = certified("4711")
    assert [(hit["kind"], hit["place"]) for hit in says["found"]] == [
        ("data file", "row group 0, column key")
    ]
    assert says["sought"]["numbers"] == ["key"]
    assert "beginnings of keys" in {item["what"] for item in says["out_of_reach"]}
    says = certified("1", "2")  # offsets, but no keys
    assert says["found"] == says["unread"] == []
    spark.sql(f"ALTER TABLE {name.records_table} SET TBLPROPERTIES('write.format.default'='avro')")
    rows.where("offset = 2").withColumn("offset", F.lit(3).cast("bigint")).writeTo(
        name.records_table
    ).append()
    (item,) = certified("1")["unread"]
    assert item["why"] == (
        "whole numbers are searched only in Parquet and ORC files with the column key"
    )
    spark.sql(f"DELETE FROM {name.records_table} WHERE offset = 3")
    spark.sql(f"CALL lake.system.expire_snapshots('{name.cluster}.orders', TIMESTAMP '2100-01-01')")
    spark.sql(f"ALTER TABLE {name.records_table} SET TBLPROPERTIES('write.format.default'='orc')")
    rows.where("offset = 2").withColumn("offset", F.lit(4).cast("bigint")).writeTo(
        name.records_table
    ).append()
    says = certified("1", "7")
    assert says["unread"] == []
    assert "stripe 0, column key" in {hit["place"] for hit in says["found"]}


def test_the_approval_of_another_jobs_plan_is_not_the_erasures(office: Office) -> None:
    """Both have the same run id, which is unique in a DAG only."""
    erasure = office.erase()
    topic = str(office.bench.name)
    of_jobs = (("erase_keys", topic), ("delete_records", topic), ("erase_keys", "log.other"))
    plans = [plan_of(job, topic, erasure) for job, topic in of_jobs]
    approvals = [
        PlanEvent(
            plan_id=plan.plan_id,
            digest=plan.digest,
            event=PlanStep.APPROVED,
            by=by,
            at=at(minute * 60_000),
            run_id=erasure,
        )
        for minute, (plan, by) in enumerate(zip(plans, ("bea", "cy", "dan"), strict=True))
    ]
    append_own(office.bench.spark, PLANS, plans, Step.PLAN_ROW)
    append_own(office.bench.spark, PLAN_EVENTS, approvals, Step.PLAN_EVENT)
    asked = office.certify("--erasure", erasure)["asked"]
    assert (asked["approved_by"], asked["plan"]) == ("bea", plans[0].plan_id)


def plan_of(job: str, topic: str, run_id: str) -> Plan:
    return Plan(
        plan_id=new_plan_id(job, at(0)),
        job=job,
        topic=topic,
        run_id=run_id,
        dag=None,
        requested_by=None,
        made_at=at(0),
        expires_at=at(0),
        now=at(0),
        parameters={},
        bounds={},
        snapshots={},
        removes={},
        summary={},
        text="",
    )


def test_an_object_that_was_written_after_the_listing_is_not_called_searched(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search began when the objects were listed."""
    plan = plan_certificate(office.bench.load(), [b"a"], run_id="r", erasure=None)
    monkeypatch.setattr(job, "machine_clock", lambda: plan.inventory.began + timedelta(hours=1))
    scan = job._statement(plan, [], at(0))["predicate"]["scan"]
    assert scan["began"] == plan.inventory.began.isoformat(timespec="seconds")


@pytest.mark.long
def test_a_file_that_no_snapshot_has_is_searched_too(office: Office) -> None:
    data = [hit["object"] for hit in office.certify()["found"]]
    (first, *_) = data
    beside = Path(first.removeprefix("file://")).with_name("left.parquet")
    table = office.bench.name.records_table
    # The beginning of its name is that of the table's location.
    location = open_table(office.bench.spark, table).locations[0]
    elsewhere = Path(location.removeprefix("file:") + "-elsewhere")
    elsewhere.mkdir()
    sql = f"ALTER TABLE {table} SET TBLPROPERTIES ('write.data.path' = '{location}-elsewhere')"
    office.bench.spark.sql(sql)
    assert open_table(office.bench.spark, table).locations == [location, f"{location}-elsewhere"]
    for orphan in (beside, elsewhere / "left.parquet"):
        orphan.write_bytes(Path(first.removeprefix("file://")).read_bytes())
    found = {hit["object"].removeprefix("file:"): hit["kind"] for hit in office.certify()["found"]}
    found = {path.removeprefix("//"): kind for path, kind in found.items()}
    assert found[str(beside)] == found[str(elsewhere / "left.parquet")] == "in no snapshot"


@pytest.mark.long
def test_an_object_that_cannot_be_read_is_named(office: Office) -> None:
    (first, *_) = [hit["object"] for hit in office.certify()["found"]]
    orphan = Path(first.removeprefix("file://")).with_name("left.parquet")
    orphan.write_bytes(b"PAR1 and no footer PAR1")
    says = office.certify()
    assert [item["object"] for item in says["unread"]] == [f"file://{orphan}"]
    assert office.rows()[-1]["result"] == "incomplete"
    assert (
        "incomplete: 1 objects or tables could not be read"
        in office.jobs.last_run().topic_result["note"]
    )


def test_a_table_that_cannot_be_opened_is_not_called_searched(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, lost = search.find_table, office.bench.name.records_table

    def find(spark: Any, name: str) -> Any:
        if name == lost:
            raise OSError("the store is away")
        return opens(spark, name)

    monkeypatch.setattr(search, "find_table", find)
    says = office.certify()
    unread = {"object": lost, "why": "it cannot be opened: the store is away"}
    assert (says["found"], says["unread"]) == ([], [unread])
    assert office.rows()[-1]["result"] == "incomplete"


@pytest.mark.long
def test_a_bit_of_a_searched_object(office: Office) -> None:
    (first, *_) = [hit["object"] for hit in office.certify()["found"]]
    path = Path(first.removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert office.verify(ALICE) == CONTRADICTED


@pytest.mark.long
def test_two_certificates_at_a_time_are_a_chain(office: Office, meanwhile: Meanwhile) -> None:
    meanwhile(Step.CERTIFICATE, office.certify)
    office.certify()
    rows = office.rows()
    assert rows[1]["previous"] == rows[0]["digest"]
    assert rows[1]["number"] == rows[0]["number"] + 1


@pytest.mark.parametrize(
    "ahead",
    [pytest.param(timedelta(minutes=-10), marks=pytest.mark.long), timedelta(minutes=10)],
)
def test_the_clock_of_the_newest_certificate_does_not_matter(
    office: Office, ahead: timedelta
) -> None:
    office.certify()
    let_newest_be_ahead(office.bench.spark, CERTIFICATES, ahead)
    office.certify()
    assert [row["number"] for row in office.rows()[-2:]] == [
        office.rows()[-1]["number"] - 1,
        office.rows()[-1]["number"],
    ]


def test_a_killed_run_leaves_no_certificate(office: Office, kill_at: list[Step]) -> None:
    before = len(office.rows()) if office.bench.spark.catalog.tableExists(CERTIFICATES) else 0
    kill_at.append(Step.CERTIFICATE)
    assert office.run(certify_erasure) == ExitCode.FAILED
    office.certify()
    assert len(office.rows()) == before + 1


CERTIFICATES = "lake.ebbtide.certificates"
NOW = at(10_000).isoformat()


def test_a_chain_that_others_append_to_all_the_time(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_are_faster(*_: object, **__: object) -> None:
        raise CommitConflictError("another one")

    monkeypatch.setattr(job, "append_own", others_are_faster)
    plan = plan_certificate(office.bench.load(), [b"a"], run_id="r", erasure=None)
    with pytest.raises(CommitConflictError, match="expected to append a certificate within 5"):
        job.append_signed(plan, job._statement(plan, [], at(0)))


def test_an_erasure_ends_with_a_certificate(
    office: Office, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as no_key:
        no_key.setenv(SIGNING_KEY, str(tmp_path / "none.pem"))
        assert office.run(erase_keys, "--append", "--certify") == ExitCode.FAILED
        assert "expected a private key" in str(office.jobs.last_run().error)
        assert office.bench.load().partitions[0].log_end_offset == 5  # nothing was erased
    assert office.run(erase_keys, "--append", "--certify") == ExitCode.DONE
    result = office.jobs.last_run().topic_result
    row = office.rows()[-1]
    assert (row["erasure"], row["certificate"]) == (office.jobs.run_id, result["certificate"])
    assert result["found_in"] == {"data file": len(office.says()[-1]["found"])}
    assert f"certificate {row['certificate']}: " in result["note"]
