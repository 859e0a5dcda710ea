"""The job ingest_table itself: its plan, its rows in `runs`, and topics that it knows."""

import json

import pytest

from ebbtide.iceberg.adopted.copied_rows import copied_topics
from ebbtide.iceberg.topics import exists
from ebbtide.runner.application import problems
from ebbtide.settings.names import TopicName
from jobs import ingest_table
from tests.jobs.ingest_table.copying import held
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, append, spark_table
from tests.tables.nights import at
from tests.tables.planned import Jobs


@pytest.mark.long
def test_topics_are_named_once_and_known_from_then_on(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    spark, names = sandbox.session, [TopicName(cluster, "a"), TopicName(cluster, "b")]
    sandbox.topic(f"{cluster}.other")
    now = ("--now", at(10_000).isoformat())
    for name in names:
        source = f"{cluster}_source.{name.topic}"
        spark_table(spark, source)
        append(spark, source, [Record(0, "k"), Record(1, "k")])
        topic = ("--topic", str(name), "--source", source, *now)
        assert jobs.run(ingest_table, *topic, "--plan-only") == 0
        assert not exists(spark, name)
        assert "layout: Spark's Kafka source" in capsys.readouterr().out
        assert jobs.run(ingest_table, *topic) == 0
        append(spark, source, [Record(2, "k"), Record(0, "k")])
    run = jobs.last_run()
    assert list(problems("ingest_table", json.loads(json.dumps(run.result)))) == []
    assert run.topic_result["source"] == f"table:{cluster}_source.b"
    assert copied_topics(spark) == names
    assert jobs.run(ingest_table, *now) == 0
    assert [[record.offset for record in held(spark, name)] for name in names] == [[0, 1, 2]] * 2


def test_columns_are_for_one_topic(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    now = ("--now", at(10_000).isoformat())
    with pytest.raises(SystemExit):
        jobs.run(ingest_table, "--key-column", "id", *now)
    assert "expected one --topic with --source or columns, found 0" in capsys.readouterr().err
