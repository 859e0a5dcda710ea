"""The pages of a topic whose table others write say nothing that holds only for ebbtide's own."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.orchestration.pages.topic import FORMS
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import Frame
from tests.lake_sandbox import LakeSandbox
from tests.plugins.html import text_of
from tests.tables.adopted import COMPACTED, Record, adopt, append, clean, spark_table

pytestmark = pytest.mark.usefixtures("known_dags")
TOPIC = "raw.orders"
NOW = datetime.now(UTC)


def test_an_adopted_topic(viewer: Any, lake: LakeSandbox) -> None:
    a_round(lake)
    html = viewer.get(f"/ebbtide/topics/{TOPIC}").text
    text = text_of(html)
    assert "It was adopted with the layout of Spark's Kafka source." in text
    assert "supersede by key exact the newest record of each key is retained" in text
    assert "retention by size, time and event time approximate" in text
    assert "off the disk once the owner of this adopted table expires its snapshots." in text
    assert "they expire no snapshots. A run can be undone while the snapshots before" in text
    assert f"SELECT * FROM lake.{TOPIC} LIMIT 20" in text.replace("`", "")
    assert "Partition 0: 2 offsets never arrived, the newest from 3 to 4. " in text
    assert "__committed" not in text
    assert "Find a key of this topic" not in text
    for dag in FORMS:
        assert (f"/forms/{dag}?topic=" in html) is SPECS[dag].works_on_adopted, dag
    settings = re.search(r'href="([^"]*/forms/adopt_table[^"]*)"', html)
    assert settings
    form = text_of(viewer.get(settings[1].replace("&amp;", "&")).text)
    assert "kafka.cleanup.policy=compact kafka.delete.retention.ms=1000" in form

    # Its run, its forms, its keys, and its line among all topics.
    assert "Undo this run" not in viewer.get(f"/ebbtide/runs/run-1?topic={TOPIC}").text
    html = viewer.get(f"/ebbtide/forms/delete_records?topic={TOPIC}").text
    assert "the job reads its current end when it runs" in text_of(html)
    assert not re.search(r'name="offset.0"[^>]*max=', html)
    for dag in (spec.name for spec in SPECS.values() if spec.frame is not Frame.STAGE):
        text = text_of(viewer.get(f"/ebbtide/forms/{dag}?topic={TOPIC}").text)
        said = f"{dag} does not work on {TOPIC}, because it is an adopted table." in text
        assert said is not SPECS[dag].works_on_adopted, dag
    for key in ({"key": "a", "encoding": "utf-8"}, {"key": "0" * 64, "encoding": "sha-256"}):
        answer = viewer.post("/ebbtide/keys", data={"topic": TOPIC, **key})
        assert (answer.status_code, "found the adopted topic" in answer.text) == (400, True)
    row = text_of(viewer.get("/ebbtide/").text)
    assert f"{TOPIC} compact · 1 partition" in row


def a_round(lake: LakeSandbox) -> None:
    """A table of Spark's Kafka source, and a round that removed one of its rows."""
    spark = lake.session
    spark_table(spark, TOPIC)
    append(spark, TOPIC, [Record(n, key) for n, key in enumerate("aab")])
    adopt(spark, TOPIC, COMPACTED)
    append(spark, TOPIC, [Record(5, "c")])
    outcome = clean(spark, TOPIC, 10_000)
    assert outcome.rows_removed == 1
    lake.run(TOPIC, "clean_log", now=NOW, partitions=outcome.partitions, rows_removed=1)
