"""The way out that a tripped guard names, through spark-submit."""

import re
from pathlib import Path

import pytest

from ebbtide.iceberg.schema import PLANS_TABLE
from tests.jobs.submit import submit
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest

pytestmark = pytest.mark.long

CONFIG = {"cleanup.policy": "delete", "retention.bytes": "0"}
NOW_MS = FIRST_MS + DAY_MS


def test_a_guard_leaves_its_topic_as_it_is_until_its_plan_is_executed(
    lake: LakeSandbox, tmp_path: Path
) -> None:
    """The other topic goes on, and a plan that is only shown does not fail."""
    for topic, ratio in {"careful": "0.5", "careless": "1"}.items():
        write_log(tmp_path / topic, topic, [[Message("a", "1")]], CONFIG)
        ingest(lake.session, f"log.{topic}", tmp_path / topic, FIRST_MS)
        setting = f"'ebbtide.max.delete.ratio' = '{ratio}'"
        lake.session.sql(f"ALTER TABLE lake.log.{topic} SET TBLPROPERTIES ({setting})")
    arguments = ["--topic", "log.careful", "--now", at(NOW_MS).isoformat()]

    planned = submit(lake, "expire_segments", *arguments, "--plan-only")
    assert planned.returncode == 0
    shown = re.search(r"^plan: (expire_segments-\d{8}-\w{8})$", planned.stdout, re.MULTILINE)
    assert shown is not None, planned.stdout
    assert re.search(r"^delete ratio: 1(\.0)?$", planned.stdout, re.MULTILINE)

    stopped = submit(lake, "expire_segments", *arguments, "--topic", "log.careless")
    assert stopped.returncode == 1
    assert "SafetyError: expected to remove at most 0.5 of the bytes" in stopped.stdout
    kept = re.search(r"Plan (expire_segments-\d{8}-\w{8}) has what would go", stopped.stdout)
    assert kept is not None, stopped.stdout
    left = [lake.session.table(f"lake.log.{topic}").count() for topic in ("careful", "careless")]
    assert left == [1, 0]
    plans = {row["plan_id"] for row in lake.session.table(PLANS_TABLE).collect()}
    assert plans == {shown[1], kept[1]}

    approved = submit(lake, "expire_segments", "--plan", kept[1], "--approved-by", "bob")
    assert approved.returncode == 0, approved.stderr[-2000:]
    assert lake.session.table("lake.log.careful").count() == 0
