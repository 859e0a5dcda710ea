"""Tables that are copied in, from Airflow: what a form passes on, and what a night hears."""

from __future__ import annotations

from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import asset_events, run_dag


def test_the_form_is_passed_on_and_a_plan_tells_no_night(spark_submit: FakeSpark) -> None:
    source = {"source": "far:raw.orders", "source_topic": "orders", "key_column": "id"}
    run = run_dag("ingest_table", topics=["copies.orders"], plan_only=True, **source)
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    options = vars(submitted.options)
    assert {name: options[name] for name in source} == source
    assert (options["topic"], options["plan_only"]) == (["copies.orders"], True)
    assert asset_events(run) == {}


def test_without_a_topic_the_job_finds_those_that_are_copied(spark_submit: FakeSpark) -> None:
    run = run_dag("ingest_table")
    assert run.state == "success"
    assert spark_submit.submitted[0].options.topic == []
    assert asset_events(run) == {
        "ebbtide://lake/log/found": {"low_watermarks": {"0": 5}},
        "ebbtide://ingested/": {},
    }
