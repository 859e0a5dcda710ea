"""The form of erase_keys: no key is shown to anybody but its driver."""

from __future__ import annotations

import json
import os

import pytest

from ebbtide.errors import (
    UnavailableError,
)
from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.specs.erase_request import KEYS
from tests.dags.answers import run_and_answer
from tests.dags.fake_spark import FakeSpark
from tests.dags.forms.connections import KAFKA, SECRET
from tests.dags.runs import rendered, run_dag, xcoms
from tests.lake_sandbox import LakeSandbox

ASKED = {"topic": "log.a", "requested_by": "privacy office", "reason": "request 17"}


def test_erase_keys_shows_no_key_but_to_its_driver(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor a secret of the upstream's connection, of the replica's or of the one in the form."""
    for name in ("asked", "writer", "other"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(KAFKA))
    config = {"kafka.cleanup.policy": "compact", "ebbtide.source": "kafka:writer"}
    lake.topic("log.a", config=config)
    keys = ["alice@example.org", "b o b"]
    form = {**ASKED, "keys": keys, "connection": "asked", "timeout_ms": 5}
    answered = run_and_answer("erase_keys", **form)
    run = answered.run
    assert run.state == "success"
    planned, executed = spark_submit.submitted
    assert planned.keys == executed.keys == "alice@example.org\nb o b"
    assert planned.topics == executed.topics == ["log.a"]
    options = planned.options
    assert planned.words == {"requested_by": "privacy office", "reason": "request 17"}
    assert executed.words == {}  # the plan has them
    assert (options.encoding, options.connection, options.timeout_ms) == ("utf-8", "asked", "5")
    assert (options.append, options.certify, options.keys_file) == (False, True, None)
    for submitted in (planned, executed):
        assert json.loads(submitted.connections or "").keys() == {"asked", "writer"}
    assert KEYS not in os.environ
    assert CONNECTIONS not in os.environ
    shown = [*planned.command, *executed.command, answered.body, xcoms(run), rendered(run)]
    seen = str([*shown, capfd.readouterr(), caplog.text])
    assert "alice" not in seen
    assert "privacy office" not in str([planned.command, executed.command, rendered(run)])
    assert SECRET not in seen


@pytest.mark.long
def test_erase_keys_of_a_file_of_a_closed_archive(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    run_and_answer("erase_keys", **ASKED, keys_file="s3://keys/17", encoding="hex", append=True)
    planned, executed = spark_submit.submitted
    assert (planned.options.keys_file, planned.options.encoding) == ("s3://keys/17", "hex")
    assert planned.options.append
    assert (executed.options.keys_file, len(executed.options.plan)) == ("s3://keys/17", 1)
    for submitted in (planned, executed):
        assert (submitted.keys, submitted.connections) == (None, None)


@pytest.mark.long
def test_more_keys_than_an_environment_holds_are_refused(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    run = run_dag("erase_keys", **ASKED, keys=["k" * 50_000, "l" * 50_000])
    assert run.state == "failed"
    assert spark_submit.submitted == []


@pytest.mark.long
def test_an_erasure_that_did_not_arrive_is_asked_for_again(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    spark_submit.failures["erase_keys", "log.a"] = [UnavailableError("not in time"), None]
    run = run_and_answer("erase_keys", **ASKED, keys=["k"]).run
    assert run.state == "success"
    assert [submitted.keys for submitted in spark_submit.submitted] == ["k", "k", "k"]
