"""A lake that version 0.1 has written opens and goes on: its names are read as those of today."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, PlanError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.schema import create_views
from ebbtide.iceberg.topics import load, set_properties
from ebbtide.jobs.configure_topic import execute_configure, plan_configure
from ebbtide.layouts.layout import table_properties, topic_properties
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.plans import PLAN_EVENTS, PlanEvent, PlanStep, offset_range
from ebbtide.ledger.results import RENAMED as RENAMED_FIELDS
from ebbtide.ledger.results import VERSION
from ebbtide.runner.stored_plans import check_removes_all
from ebbtide.settings.config import RENAMED, SETTINGS
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.settings_changes import check_names
from tests.lake_sandbox import LakeSandbox
from tests.log.plans.test_plans import plan_of
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest

SHARED = TopicName.parse("raw.all@orders")


@pytest.mark.parametrize("name", [TopicName("log", "t"), SHARED])
@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_setting_is_read_by_its_old_name_until_it_is_changed(
    name: TopicName, old: str, new: str
) -> None:
    assert new in SETTINGS
    before = {k: v for k, v in table_properties(name, {old: "7"}).items() if v is not None}
    assert topic_properties(name, before) == {new: "7"}
    assert topic_properties(name, {**before, **_set(name, {new: "8"})})[new] == "8"
    for value in ("8", None):
        changes = table_properties(name, {new: value})
        assert changes.keys() == {*before, *table_properties(name, {new: value})}
        assert changes[next(iter(before))] is None


def _set(name: TopicName, changes: dict[str, str | None]) -> dict[str, str]:
    return {k: v for k, v in table_properties(name, changes).items() if v is not None}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_change_by_an_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(ConfigurationError, match=f"expected {new}, found {old}, its name before"):
        check_names({old: "1"})


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    write_log(tmp_path, "t", [[Message("a", "1")]], {})
    ingest(sandbox.session, f"{cluster}.t", tmp_path, FIRST_MS)
    return TopicName(cluster, "t")


def test_a_table_with_an_old_name_goes_on(sandbox: LakeSandbox, name: TopicName) -> None:
    spark, table = sandbox.session, name.records_table
    set_properties(spark, table, {"ebbtide.undo.ms": "5"})
    assert load(spark, name).config.undo_retention_ms == 5
    change = {"ebbtide.undo.retention.ms": "6"}
    execute_configure(plan_configure(load(spark, name), change, FIRST_MS))
    properties = open_table(spark, table).metadata.properties
    assert properties["ebbtide.undo.retention.ms"] == "6"
    assert "ebbtide.undo.ms" not in properties


def test_views_take_the_place_of_those_with_old_names(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    for new, ending in (("null_tombstones_view", "v1"), ("latest_view", "table")):
        spark.sql(f"DROP VIEW {getattr(name, new)}")
        spark.sql(f"CREATE VIEW {name.old_name(ending)} AS SELECT 1 AS one")
    create_views(spark, name)
    for new, ending in (("null_tombstones_view", "v1"), ("latest_view", "table")):
        assert spark.table(getattr(name, new)).count()
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.table(name.old_name(ending))


@pytest.mark.parametrize(
    ("job", "place", "old"),
    [
        (job, place, old)
        for job in SPECS
        for names in (RENAMED_FIELDS[None], RENAMED_FIELDS.get(job, {}))
        for old, new in names.items()
        for place, fields in zip(("partitions", "topic"), SPECS[job].result, strict=True)
        if new in fields.__annotations__
    ],
)
def test_a_result_of_before_has_the_names_of_today(job: str, place: str, old: str) -> None:
    new = {**RENAMED_FIELDS[None], **RENAMED_FIELDS.get(job, {})}[old]
    numbers: dict[str, Any] = {old: 3, "note": "n"}
    result = {"partitions": {}, "topic": {}, place: numbers if place == "topic" else {"0": numbers}}
    for version, name in ((3, new), (VERSION, old)):
        row = _run(job, {"version": version, **result})
        read = row.topic_result if place == "topic" else row.partitions[0]
        assert read == {name: 3, "note": "n"}


def _run(job: str, result: dict[str, Any]) -> Any:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    cells = dict.fromkeys(RUNS.types) | {"job": job, "result": json.dumps(result), "started": now}
    return RUNS.to_row(cells)


def test_a_plan_of_before_has_the_settings_of_today(sandbox: LakeSandbox, name: TopicName) -> None:
    """Fewer offsets than planned are an error only if a setting has changed since."""
    spark, settings = sandbox.session, {"ebbtide.clean.idle": "false"}
    set_properties(spark, name.records_table, settings)
    plan = plan_of(topic=str(name), summary={"settings": settings}, removes={0: offset_range(0, 1)})
    check_removes_all(plan, load(spark, name), {})
    set_properties(spark, name.records_table, {"ebbtide.clean.idle": "true"})
    with pytest.raises(PlanError, match=r"clean\.without\.new\.data was 'false' and is 'true'"):
        check_removes_all(plan, load(spark, name), {})


def test_an_event_of_before_is_read() -> None:
    cells = dict.fromkeys(PLAN_EVENTS.types) | {"event": "stopped"}
    event: PlanEvent = PLAN_EVENTS.to_row(cells)
    assert event.event is PlanStep.EXCEEDED
