"""A run that can be taken back says so on its page, until when, and what goes back with it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.runner.undo_points import append_point
from tests.lake_sandbox import LakeSandbox, partition_result, state_of
from tests.plugins.html import text_of

NOW = datetime.now(UTC).replace(microsecond=0)


def removed(lake: LakeSandbox, run_id: str, at: datetime) -> None:
    """A run that removed from partition 0, and noted before what there was."""
    numbers = {"partitions": {0: partition_result()}, "rows_removed": 3}
    lake.run("log.a", "clean_log", run_id=run_id, now=at, **numbers)
    states = {0: state_of()}
    point = UndoPoint(
        point_id=run_id, run_id=run_id, job="clean_log", topic="log.a", at=at, states=states
    )
    append_point(lake.session, point, Step.UNDO_POINT)


def test_a_run_offers_its_undo_until_its_files_may_go(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a")
    for run_id, days in (("old", 4), ("one", 2), ("two", 1)):
        removed(lake, run_id, NOW - timedelta(days=days))
    html = viewer.get("/ebbtide/runs/one").text
    assert 'href="/ebbtide/forms/undo_run?topic=log.a&amp;run=one"' in html
    until = f"{NOW + timedelta(days=1):%Y-%m-%d %H:%M}"
    text = text_of(html)
    restored = "to restore the records that it removed from partition 0."
    assert f"Undo this run until {until} {restored}" in text
    assert "This also undoes 1 later run: two ." in text
    assert "This also undoes" not in viewer.get("/ebbtide/runs/two").text
    assert "Undo this run" not in viewer.get("/ebbtide/runs/old").text


def test_a_topic_says_that_its_newest_deletion_was_taken_back(
    viewer: Any, lake: LakeSandbox
) -> None:
    lake.topic("log.a")
    removed(lake, "one", NOW - timedelta(days=1))
    assert "3 records were removed from the table on " in text_of(
        viewer.get("/ebbtide/topics/log.a").text
    )
    undone = UndoPoint(
        point_id="u", run_id="back", job="undo_run", topic="log.a", at=NOW, undone={0: ["one"]}
    )
    append_point(lake.session, undone, Step.UNDO_NOTED)
    text = text_of(viewer.get("/ebbtide/topics/log.a").text)
    assert f"; run back undid the removal on {NOW:%Y-%m-%d %H:%M} UTC." in text
    assert "frees their files" not in text


@pytest.mark.usefixtures("known_dags")
def test_the_form_is_filled_in_with_the_run(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a")
    removed(lake, "one", NOW - timedelta(days=1))
    html = viewer.get("/ebbtide/forms/undo_run?topic=log.a&run=one").text
    assert 'name="run" type="text" value="one"' in html
    assert '<input type="hidden" name="topic" value="log.a">' in html
    until = f"{NOW + timedelta(days=2):%Y-%m-%d %H:%M}"
    assert f'<option value="one" label="one: clean_log, until {until}">' in html
