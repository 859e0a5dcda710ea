"""Places that can have a key, and what frees them: docs/what_can_be_erased.md names these tests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import open_table
from ebbtide.ledger.holds import HoldEvent
from ebbtide.ledger.own_tables import ERASURES, RUNS
from ebbtide.ledger.plans import PLANS
from ebbtide.ledger.undo_points import UNDO_POINTS
from ebbtide.specs.erase_request import KEYS
from jobs import (
    clean_log,
    erase_keys,
    expire_snapshots,
    export_segments,
    mark_tombstones,
    replicate_log,
)
from tests.erasure.places import KEY, SHORT_KEY, VALUE, holding
from tests.jobs.certify_erasure.office import Office, open_office
from tests.jobs.hold_records.builders import MADE, make_hold
from tests.jobs.replicate_log.replicas import replica_of
from tests.tables.adopted import Record, adopt, append, clean, spark_table
from tests.tables.bench import Bench
from tests.tables.logs import Message
from tests.tables.nights import at
from tests.tables.other_tools import expire_all
from tests.tables.planned import Jobs

LOG = [
    [Message(KEY, VALUE), Message("b", "1"), Message(SHORT_KEY, "1")],
    [Message(KEY, VALUE), Message(KEY, None), Message("c", "1")],
    [Message(KEY, VALUE), Message(SHORT_KEY, "2"), Message("d", "1")],
    [],
]
# The third null value is not marked as a tombstone, so it is moved to the quarantine.
EXPLICIT = {"ebbtide.tombstone.explicit": "true"}
SHOWN = {"ebbtide.plan.show.keys": "true"}
AGE_0 = {"history.expire.max-snapshot-age-ms": "0"}

RECORDS, HELD, QUARANTINE = "lake/c/t/data", "lake/c_held/t/data", "lake/c_quarantine/t/data"
PLANNED, REPLICA = "lake/ebbtide/plans/data", "other/c/t/data"


class Lake:
    """A lake with keys in it, the jobs on one of its topics, and what other tools do to it."""

    def __init__(self, office: Office) -> None:
        self.office, self.bench = office, office.bench
        self.spark, self.name = office.bench.spark, office.bench.name
        self.home = office.bench.sandbox.home

    def run(self, job: ModuleType, *more: str, nights: int = 0) -> None:
        """Run a job, which succeeds."""
        assert self.office.run(job, *more, nights=nights) == ExitCode.DONE

    def sql(self, statement: str) -> None:
        self.spark.sql(statement)

    def places(self, *texts: str) -> set[str]:
        """The places of the topic that have one of the texts, by default any of the keys."""
        found = set()
        for catalog in ("lake", "other"):
            for place in holding(self.home / catalog / "warehouse", *texts):
                cluster, *_ = place.split("/")
                if cluster.startswith((self.name.cluster, "ebbtide")):
                    found.add(f"{catalog}/{place.replace(self.name.cluster, 'c', 1)}")
        return found


@pytest.fixture
def lake(empty: Bench, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    keys = f"{KEY}\n{SHORT_KEY}"
    return Lake(open_office(empty, jobs, tmp_path, monkeypatch, LOG, keys))


@pytest.mark.long
def test_a_key_is_in_each_place_until_that_is_freed(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake.bench.sandbox.add_catalog("other")
    lake.bench.set({**SHOWN, **EXPLICIT, "ebbtide.replicas": f"other.{lake.name.cluster}"})
    assert lake.places() == {RECORDS}  # and no manifest, whose bounds have no key
    lake.run(mark_tombstones)
    assert lake.places() == {RECORDS, QUARANTINE}
    lake.run(replicate_log)
    assert lake.places() == {RECORDS, QUARANTINE, REPLICA}
    lake.run(export_segments, "--target", str(tmp_path / "export"))
    assert {place.rpartition(".")[2] for place in holding(tmp_path / "export")} == {"log"}
    lake.run(clean_log, "--plan-only")
    assert lake.places() == {RECORDS, QUARANTINE, REPLICA, PLANNED}
    make_hold(lake.spark, lake.name)
    lake.sql(f"ALTER TABLE {lake.name.records_table} CREATE TAG audit")
    lake.sql(f"ALTER TABLE {lake.name.records_table} CREATE BRANCH work")
    lake.sql(f"CALL lake.system.compute_table_stats(table => '{lake.name}')")
    lake.run(clean_log)
    assert lake.places() == {RECORDS, QUARANTINE, REPLICA, PLANNED, HELD}

    make_hold(lake.spark, lake.name, event=HoldEvent.ENDED, at=MADE + timedelta(days=1))
    lake.run(erase_keys, "--append")
    lake.run(clean_log, nights=1)
    lake.run(replicate_log, nights=1)
    lake.run(expire_snapshots, nights=1)
    assert lake.places() == {RECORDS, QUARANTINE, REPLICA, PLANNED}  # the copies are freed
    assert lake.places(VALUE) == {RECORDS, REPLICA}

    lake.sql(f"ALTER TABLE {lake.name.records_table} DROP TAG audit")
    lake.run(expire_snapshots, nights=1)
    assert RECORDS in lake.places(VALUE)
    lake.sql(f"ALTER TABLE {lake.name.records_table} DROP BRANCH work")
    lake.run(expire_snapshots, nights=1)
    assert lake.places(VALUE) == {REPLICA}
    assert RECORDS in lake.places()  # the tombstone, which the next round removes
    lake.run(clean_log, nights=2)
    lake.run(expire_snapshots, nights=2)
    assert lake.places() == {QUARANTINE, REPLICA, PLANNED}
    lake.sql(f"DELETE FROM {lake.name.quarantine_table}")
    lake.run(expire_snapshots, nights=2)
    assert lake.places() == {REPLICA, PLANNED}

    lake.sql(f"DELETE FROM {PLANS.in_catalog()} WHERE topic = '{lake.name.cluster}.t'")
    lake.sql(f"ALTER TABLE {PLANS.in_catalog()} SET TBLPROPERTIES ({_as_sql(AGE_0)})")
    lake.run(expire_snapshots, nights=2)
    assert lake.places() == {REPLICA}

    replica = replica_of(lake.name)  # it has a maximum age of its own
    lake.office.topic = ("--topic", str(replica))
    for job in (clean_log, expire_snapshots):
        lake.run(job, nights=3)
    assert lake.places() == {REPLICA}
    lake.sql(f"ALTER TABLE {replica.records_table} SET TBLPROPERTIES ({_as_sql(AGE_0)})")
    lake.run(expire_snapshots, nights=3)
    assert lake.places() == set()
    assert KEY not in caplog.text
    assert SHORT_KEY not in caplog.text
    assert {"log"} == {place.rpartition(".")[2] for place in holding(tmp_path / "export")}


def test_own_tables_name_no_key(lake: Lake) -> None:
    """Neither `runs`, nor undo points, nor erasures, nor plans, unless they are to show keys."""
    lake.bench.set({"ebbtide.undo.retention.ms": "86400000"})
    lake.run(clean_log, "--plan-only")
    lake.run(clean_log)
    lake.run(erase_keys, "--append", "--certify")
    for table in (RUNS, UNDO_POINTS, ERASURES, PLANS):
        assert open_table(lake.spark, table.in_catalog()).current is not None
    assert lake.places() == {RECORDS}


@pytest.mark.long
def test_a_short_key_is_in_bounds_of_an_owners_table_until_its_snapshots_expire(
    empty: Bench, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of a hold have no bounds, whatever the owner's table has."""
    spark, name = empty.spark, empty.name
    warehouse, cluster = empty.sandbox.home / "lake" / "warehouse", empty.name.cluster
    monkeypatch.setenv(KEYS, f"{KEY}\n{SHORT_KEY}")
    spark_table(spark, str(name))
    append(spark, str(name), [Record(0, SHORT_KEY), Record(1, SHORT_KEY), Record(2, KEY)])
    append(spark, str(name), [Record(3, "b")])
    adopt(spark, str(name))

    def places() -> set[str]:
        return {p for p in holding(warehouse, SHORT_KEY, KEY) if p.startswith(cluster)}

    owners = {f"{cluster}/t/data", f"{cluster}/t/metadata"}
    assert places() == owners
    make_hold(spark, name)
    clean(spark, str(name), 10_000)
    assert places() == {*owners, f"{cluster}_held/t/data"}
    make_hold(spark, name, event=HoldEvent.ENDED, at=MADE + timedelta(days=1))
    asked = ("--topic", str(name), "--now", at(20_000).isoformat())
    why = ("--requested-by", "ann", "--reason", "7")
    assert jobs.run(erase_keys, *asked, *why) == ExitCode.DONE, jobs.last_run().error
    assert places() >= owners
    expire_all(spark, [name.records_table])
    # The commit that removed the files lists them, with their bounds, until the next commit.
    assert places() == {f"{cluster}/t/metadata", f"{cluster}_held/t/data"}
    append(spark, str(name), [Record(4, "c")])
    expire_all(spark, [name.records_table])
    assert places() == {f"{cluster}_held/t/data"}
    spark.sql(f"ALTER TABLE {name.held_table} SET TBLPROPERTIES ({_as_sql(AGE_0)})")
    assert jobs.run(expire_snapshots, *asked) == ExitCode.DONE, jobs.last_run().error
    assert places() == set()


def _as_sql(properties: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
