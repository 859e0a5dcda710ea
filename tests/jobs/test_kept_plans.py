"""The way out that a refused plan names, through spark-submit."""

import re
from pathlib import Path

from tests.jobs.submit import submit
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest

CONFIG = {"cleanup.policy": "delete", "retention.bytes": "0"}
NOW_MS = FIRST_MS + DAY_MS


def test_a_plan_that_removes_too_much_fails_its_topic_until_it_is_let_pass(
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
    shown = re.search(r"^plan: (\w{12})\ndelete ratio: 1(\.0)?$", planned.stdout, re.MULTILINE)
    assert planned.returncode == 0
    assert shown is not None, planned.stdout

    refused = submit(lake, "expire_segments", *arguments, "--topic", "log.careless")
    assert refused.returncode == 1
    assert "SafetyError: expected retention to remove at most 0.5 of" in refused.stdout
    assert f'"accept_plan": ["{shown[1]}"]' in refused.stdout
    left = [lake.session.table(f"lake.log.{topic}").count() for topic in ("careful", "careless")]
    assert left == [1, 0]

    passed = submit(lake, "expire_segments", *arguments, "--accept-plan", shown[1])
    assert passed.returncode == 0, passed.stderr[-2000:]
    assert lake.session.table("lake.log.careful").count() == 0
