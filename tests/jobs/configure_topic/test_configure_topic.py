"""Settings of a topic: shown by their effect, checked, and set as a whole."""

from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.configure_topic import execute_configure, plan_configure
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE, max_snapshot_age_ms
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark

NIGHT_MS = FIRST_MS + 10 * DAY_MS
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
MESSAGES = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1"), Message("d", "1")],
    [Message("a", None), Message("b", "2"), Message("c", "")],
    [Message("e", "1")],
]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", FIRST_MS)
    return TopicName(cluster, "t")


def test_configuring_shows_what_the_next_run_removes(sandbox: LakeSandbox, name: TopicName) -> None:
    mark(sandbox.session, str(name))
    changes = {"kafka.cleanup.policy": "compact,delete", "kafka.retention.ms": "1"}
    plan = plan_configure(load(sandbox.session, name), changes, NIGHT_MS)
    next_run = plan.outcome().partitions[0]["next_run"]
    assert next_run["clean_log"]["superseded"] == 3
    assert next_run["expire_segments"]["segments_expired"] == 3
    assert load(sandbox.session, name).properties["kafka.cleanup.policy"] == "compact"
    execute_configure(plan)
    assert load(sandbox.session, name).config.retention_ms == 1


@pytest.mark.long
def test_what_is_not_marked_yet_is_foreseen_as_the_next_night_marks_it(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    """The round that a plan foresees is the round that then runs."""
    plan = plan_configure(load(sandbox.session, name), {}, NIGHT_MS, keeps_offsets=True)
    assert plan.outcome().partitions[0]["next_run"]["clean_log"]["superseded"] == 3
    before = set(offsets(view_of_table(sandbox.session, name, 0)))
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    left = set(offsets(view_of_table(sandbox.session, name, 0)))
    assert set(plan.removes()[0]) == before - left == {0, 1, 2}


@pytest.mark.long
def test_a_changed_tombstone_rule_is_foreseen_with_what_the_quarantine_takes(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    changes = {"ebbtide.tombstone.explicit": "true", "ebbtide.tombstone.predicate": "value = '2'"}
    plan = plan_configure(load(sandbox.session, name), changes, NIGHT_MS, keeps_offsets=True)
    outcome = plan.outcome()
    marks = outcome.partitions[0]["next_run"]["mark_tombstones"]
    assert (marks["marked"], marks["quarantined"]) == (1, 1)
    assert 4 in plan.removes()[0]  # the null value
    assert plan.summary()[0]["rules"]["quarantined"] == {"records": 1}
    note = outcome.topic["note"]
    assert "the next nightly run marks 1 as tombstones and 0 as none" in note
    assert "1 records have a null value but no tombstone mark" in note


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (("kafka.retention.ms", "-2"), "an integer in"),
        (("kafka.retention.hours", "1"), "a topic configuration that Kafka knows"),
        (("ebbtide.state.0.log-start-offset", "9"), "expected one of"),
        (("write.format.default", "orc"), "expected one of"),
        ((MAX_SNAPSHOT_AGE, "9" * 19), "a whole number of milliseconds"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_set(
    sandbox: LakeSandbox, name: TopicName, setting: tuple[str, str], message: str
) -> None:
    topic = load(sandbox.session, name)
    with pytest.raises(ConfigurationError, match=message):
        plan_configure(topic, dict([setting]), NIGHT_MS)


def test_icebergs_snapshot_age_is_set_and_gone_by(sandbox: LakeSandbox, name: TopicName) -> None:
    changes = {MAX_SNAPSHOT_AGE: "0"}
    execute_configure(plan_configure(load(sandbox.session, name), changes, NIGHT_MS))
    assert max_snapshot_age_ms(load(sandbox.session, name).properties) == 0


def test_a_killed_configuration_has_set_nothing_and_is_done_again(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    changes = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "1"}
    plan = plan_configure(load(sandbox.session, name), changes, NIGHT_MS)
    before = plan.topic.properties
    kill_at.append(Step.CONFIGURE_TOPIC)
    with pytest.raises(KilledError):
        execute_configure(plan)
    assert load(sandbox.session, name).properties == before
    execute_configure(plan)
    assert load(sandbox.session, name).properties == before | changes
