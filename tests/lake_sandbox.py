"""A lake of its own for one test: real tables written by real Spark, a rendered conf to read it."""

from __future__ import annotations

import atexit
import os
import runpy
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ebbtide.iceberg.commits import Step, own_summary
from ebbtide.iceberg.own_tables import append_own, create_own
from ebbtide.iceberg.schema import create_tables
from ebbtide.iceberg.state_table import check_commits
from ebbtide.lake.catalog_settings import read_defaults
from ebbtide.ledger.holds import Hold, HoldEvent, Kind
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.plans import (
    PLANS,
    LeavingRows,
    Plan,
    RuleNumbers,
    Summary,
    new_plan_id,
    offset_range,
    partition_summary,
)
from ebbtide.runner.holds import append_hold
from ebbtide.runner.runs_table import JobOutcome, append_runs, ended_attempt
from ebbtide.settings.names import CATALOG, TopicName
from ebbtide.spark.jvm import find_once_for_errors
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState, to_properties

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
EBBTIDE_HOME = ROOT / ".ebbtide"
WORKER_PYTHON = ROOT / "tests" / "executors" / "python"
RENDER = runpy.run_path(str(ROOT / "conf" / "render.py"))
PACKAGE = runpy.run_path(str(ROOT / "conf" / "package.py"))
# Made once by `make setup`, and the same for every lake.
SHARED = ("jars", "extra-jars", "classes.jsa", "classes.jsa.stamp")
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)


class LakeSandbox:
    """An EBBTIDE_HOME whose Spark session and rendered conf name the same new catalog."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "lake").mkdir(parents=True)
        for name in SHARED:
            (home / name).symlink_to(EBBTIDE_HOME / name)
        (home / "conf").mkdir()
        for template in ("spark-defaults.conf", "log4j2.properties"):
            text = RENDER["render"]((ROOT / "conf" / template).read_text(), self.environment())
            RENDER["write_private"](home / "conf" / template, text)
        shutil.copy(ROOT / "conf" / "spark-env.sh", home / "conf")

    @cached_property
    def session(self) -> SparkSession:
        """A Spark session whose catalog is this lake; some tests need none."""
        session = any_session(self.home).newSession()
        for key, value in self.catalogs().items():
            session.conf.set(key, value)
        return session

    def catalogs(self) -> dict[str, str]:
        """What Spark has to know of this lake, and of the catalogs beside it."""
        defaults = read_defaults(self.home / "conf" / "spark-defaults.conf")
        return {k: v for k, v in defaults.items() if k.startswith("spark.sql.catalog.")}

    def add_catalog(self, name: str, changes: Mapping[str, str] | None = None) -> None:
        """One more catalog like the lake, for this session and for whatever is submitted."""
        defaults = self.home / "conf" / "spark-defaults.conf"
        added = {
            key.replace(f"catalog.{CATALOG}", f"catalog.{name}"): value.replace(
                f"{self.home}/lake/", f"{self.home}/{name}/"
            )
            for key, value in self.catalogs().items()
            if key.startswith(f"spark.sql.catalog.{CATALOG}")
        }
        added |= {f"spark.sql.catalog.{name}.{key}": to for key, to in (changes or {}).items()}
        (self.home / name).mkdir()
        with defaults.open("a") as file:
            file.writelines(f"{key} {value}\n" for key, value in added.items())
        for key, value in added.items():
            self.session.conf.set(key, value)

    def package(self) -> None:
        """Build the zip that spark-submit takes."""
        PACKAGE["main"](self.home / "ebbtide.zip")

    def environment(self) -> dict[str, str]:
        """What points everything here."""
        return {
            "EBBTIDE_HOME": str(self.home),
            "EBBTIDE_ROOT": str(ROOT),
            "SPARK_CONF_DIR": str(self.home / "conf"),
            "PYSPARK_PYTHON": str(WORKER_PYTHON),
            "PYSPARK_DRIVER_PYTHON": str(ROOT / "conf" / "python"),
        }

    def take_jobs(self, patch: pytest.MonkeyPatch, **more: str) -> None:
        """Let jobs that run in this process work on this lake, with more in their environment."""
        from pyspark.sql import SparkSession

        session = self.session
        patch.setattr(session, "newSession", lambda: session)
        patch.setattr(SparkSession.Builder, "getOrCreate", lambda _: session)
        for name, value in {**self.environment(), **more}.items():
            patch.setenv(name, value)

    def topic(
        self,
        name: str,
        states: Mapping[int, PartitionState] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic's tables, without its views, with a configuration and a state."""
        properties = dict(config or {"kafka.cleanup.policy": "compact"})
        for partition, state in (states if states is not None else {0: state_of()}).items():
            properties |= to_properties(partition, state)
        session, catalog = self.session, self.home / "lake" / "catalog.db"
        if not catalog.exists():
            shutil.copy(_probed_catalog(), catalog)
        create_tables(session, TopicName.parse(name), properties)

    def batches(self, name: str, rows: Sequence[tuple[int, int, int, int]]) -> None:
        """Add batches: (partition, offset, attributes, base timestamp in ms), 100 bytes each."""
        values = ", ".join(
            f"({partition}, {offset}, {offset}, 0, {attributes}, {base_ms}, 100)"
            for partition, offset, attributes, base_ms in rows
        )
        with as_ebbtide(self.session):
            self.session.sql(
                f"INSERT INTO {TopicName.parse(name).batches_table} (`partition`, base_offset, "
                f"last_offset, segment, attributes, base_timestamp_ms, size_bytes) VALUES {values}"
            )

    def records(
        self, name: str, rows: Sequence[tuple[int, int]], *, event_ms: int | None = None
    ) -> None:
        """Add records: (partition, offset), all of one event time."""
        at = "null" if event_ms is None else f"timestamp_millis({event_ms})"
        values = ", ".join(
            f"({partition}, {offset}, 0, 0, false, {at})" for partition, offset in rows
        )
        with as_ebbtide(self.session):
            self.session.sql(
                f"INSERT INTO {TopicName.parse(name).records_table} "
                f"(`partition`, offset, segment, batch, is_tombstone, event_time) VALUES {values}"
            )

    def run(self, topic: str, job: str, /, **given: Any) -> None:
        """Append a row to `runs`; `partitions`, `error`, `now` and totals as given."""
        now = given.pop("now", MIDNIGHT)
        attempt = ended_attempt(
            error=given.pop("error", None),
            run_id=given.pop("run_id", "run-1"),
            dag=given.pop("dag", "nightly_retention"),
            task=given.pop("task", job),
            job=job,
            topic=topic,
            started=given.pop("started", now),
            ended=given.pop("ended", now),
            now=now,
            outcome=JobOutcome(**given),
        )
        create_own(self.session, RUNS)
        append_runs(self.session, [attempt])

    def plan(self, topic: str, job: str, *, records: int = 3, **given: Any) -> Plan:
        """Keep a plan that removes the first `records` offsets of partition 0; else as given."""
        made_at = given.pop("made_at", datetime.now(UTC))
        leaving = LeavingRows(records=records)
        summary = partition_summary(
            leaving, {job: RuleNumbers(records=records)}, bytes_removed=10 * records
        )
        plan = Plan(
            plan_id=new_plan_id(job, made_at),
            job=job,
            topic=topic,
            made_at=made_at,
            expires_at=given.pop("expires_at", made_at + timedelta(days=1)),
            now=given.pop("now", MIDNIGHT),
            parameters=given.pop("parameters", {}),
            bounds={0: {"log_end_offset": 100}},
            snapshots={},
            removes={0: offset_range(0, records)},
            summary=Summary(partitions={"0": summary}, seconds=None),
            text=f"{job} {topic}: a plan",
            **{"run_id": "run-1", "dag": None, "requested_by": None, **given},
        ).sealed()
        append_own(self.session, PLANS, [plan], Step.PLAN_ROW)
        return plan

    def hold(self, topic: str, **changes: Any) -> Hold:
        """Keep an event of a hold: of yesterday, on partition 0, offsets 20 to 30, unless told."""
        event = Hold(
            **{
                "hold_id": "h-1",
                "event": HoldEvent.MADE,
                "at": datetime.now(UTC) - timedelta(days=1),
                "by": "ann",
                "run_id": "run-1",
                "kind": Kind.KEEP,
                "topic": topic,
                "partition": 0,
                "first_offset": 20,
                "end_offset": 30,
                "case_id": "C-7",
                "owner": "legal",
                **changes,
            }
        )
        append_hold(self.session, TopicName.parse(topic), event)
        return event


@cache
def _probed_catalog() -> Path:
    """A catalog of which is known that its commits are exclusive: to find out takes commits."""
    home = Path(tempfile.mkdtemp(prefix="ebbtide-probed-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    probed = LakeSandbox(home / "home")
    check_commits(probed.session, CATALOG)
    return probed.home / "lake" / "catalog.db"


@contextmanager
def as_ebbtide(spark: SparkSession) -> Iterator[None]:
    """What this session's SQL commits is taken for ebbtide's own."""
    settings = {
        f"spark.sql.iceberg.snapshot-property.{name}": value
        for name, value in own_summary({}).items()
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def any_session(home: Path) -> SparkSession:
    """The process's session if there is one; a process can only have one Spark."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName("tests")
    for key, value in read_defaults(home / "conf" / "spark-defaults.conf").items():
        builder = builder.config(key, value)
    # To compile code for a query takes longer than to do without, where there are a few rows.
    builder = builder.config("spark.sql.codegen.wholeStage", "false")
    builder = builder.config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    # PySpark starts its JVM by spark-submit, which looks there.
    with patch.dict(os.environ, SPARK_CONF_DIR=str(home / "conf")):
        spark = builder.getOrCreate()
    find_once_for_errors(spark)
    return spark


def state_of(**changes: Any) -> PartitionState:
    """A partition of 100 offsets that is marked, cleaned and waits for nothing."""
    return PartitionState(
        **{
            "log_start_offset": 0,
            "log_end_offset": 100,
            "first_dirty_offset": 100,
            "first_unmarked_offset": 100,
            "segments": (SegmentStart(0, 0), SegmentStart(100, 0)),
            "cleaned_end_offset": 100,
            "next_clean_ms": -1,
            **changes,
        }
    )


def partition_result(**numbers: Any) -> dict[str, Any]:
    """What every job says about a partition, and more if given."""
    return {"log_start_offset": 0, "low_watermark": 0, "log_end_offset": 100, **numbers}
