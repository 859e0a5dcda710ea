"""The deadline of erasure of a topic with a table replica: who may be late is named."""

from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, compare_and_set, load
from ebbtide.jobs.configure_topic import execute_configure, plan_configure
from ebbtide.lake.reader import LakeTopic
from ebbtide.moments import to_datetime
from ebbtide.orchestration.erasures import overdue_erasures
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.settings.names import TopicName
from ebbtide.state.deletes import Stage, pending
from tests import rows
from tests.jobs.replicate_log.replicas import (
    NIGHTS,
    grow,
    name_lost_catalog,
    replica_of,
    replicate,
    set_replicas,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS
from tests.tables.nights import DAY_MS, clean, mark

pytestmark = pytest.mark.long

# With the defaults and a replica, ten days are needed.
DEADLINE = {DEADLINE_MS: str(12 * DAY_MS)}
END_MS = FIRST_MS + 12 * DAY_MS


def configure(sandbox: LakeSandbox, name: TopicName, changes: PropertyChanges) -> str:
    """Set the settings; the note of the result."""
    plan = plan_configure(load(sandbox.session, name), dict(changes), FIRST_MS)
    return str(execute_configure(plan).topic.get("note", ""))


def stages(sandbox: LakeSandbox, name: TopicName) -> set[int]:
    deletes = load(sandbox.session, name).partitions[0].deletes
    return {group.stage for group in pending(deletes)}


def test_a_replica_has_the_deadline_once_replicate_log_has_run(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    replicate(sandbox, name)
    note = configure(sandbox, name, DEADLINE)
    assert note.startswith(
        f"the replica {replica_of(name)} may miss {DEADLINE_MS}: its {DEADLINE_MS} is not set, "
        f"expected {12 * DAY_MS}: run replicate_log"
    )
    replicate(sandbox, name)
    assert configure(sandbox, name, {"ebbtide.enabled": "true"}) == ""
    mark(sandbox.session, str(replica_of(name)))
    assert stages(sandbox, replica_of(name)) == {Stage.MARKED}
    replica = load(sandbox.session, replica_of(name))
    compare_and_set(replica, Step.CONFIGURE_TOPIC, lambda _: {"ebbtide.enabled": "false"})
    assert "nightly runs skip it" in configure(sandbox, name, DEADLINE)


def test_a_deadline_that_a_replica_cannot_meet_is_refused_with_its_name(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    """Its snapshots are its own: replicate_log does not copy their age."""
    replicate(sandbox, name)
    age = {"history.expire.max-snapshot-age-ms": str(8 * DAY_MS)}
    replica = load(sandbox.session, replica_of(name))
    compare_and_set(replica, Step.CONFIGURE_TOPIC, lambda _: age)
    with pytest.raises(ConfigurationError) as refused:
        configure(sandbox, name, DEADLINE)
    assert str(refused.value).startswith(
        f"on the replica {replica_of(name)}: expected {DEADLINE_MS} of at least {13 * DAY_MS} ms"
    )
    configure(sandbox, name, {DEADLINE_MS: str(13 * DAY_MS)})


def test_a_replica_that_cannot_be_reached_is_named(sandbox: LakeSandbox, name: TopicName) -> None:
    name_lost_catalog(sandbox)
    set_replicas(sandbox, name, f"gone.{name.cluster}")
    lost = name._replace(catalog="gone")
    note = configure(sandbox, name, DEADLINE)
    assert note.startswith(f"the replica {lost} may miss {DEADLINE_MS}: it cannot be reached")


def test_a_delete_that_waits_for_a_replica_is_named_before_and_after_it_is_late(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    configure(sandbox, name, DEADLINE)
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:7])
    clean(sandbox.session, str(name), FIRST_MS + DAY_MS)
    # The tombstones at 14, 17 and 20 are not in the replica.
    last_ms = END_MS - 5 * DAY_MS - 2 * DAY_MS
    clean(sandbox.session, str(name), last_ms)
    assert stages(sandbox, name) == {Stage.HORIZON_SET}
    note = clean(sandbox.session, str(name), last_ms + 1).partitions[0]["note"]
    waits = (
        f"3 tombstones and markers are due and wait for the replica {replica_of(name)}, which "
        "ends at offset 12: run replicate_log"
    )
    assert note.startswith(f"{waits}; the next nightly run may be too late for a delete from offs")
    numbers = clean(sandbox.session, str(name), END_MS + 1).partitions[0]
    assert numbers["note"] == waits
    topic = LakeTopic(str(name), load(sandbox.session, name).properties)
    overdue = overdue_erasures(topic, END_MS + 1)
    assert overdue is not None
    run = rows.run("clean_log", to_datetime(END_MS), result={"partitions": {"0": numbers}})
    assert numbers["reason"].startswith("a delete horizon has been due since")
    told = f": clean_log: {numbers['reason']}; {waits}"
    assert overdue.in_words([run], END_MS + 1).endswith(told)
    replicate(sandbox, name)
    clean(sandbox.session, str(name), END_MS + 2)
    assert stages(sandbox, name) == {Stage.REMOVED}
