"""Tombstones and markers that wait until every replica has them."""

from pathlib import Path

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load, replica_names
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.jobs.replicate_log.replicas import (
    NIGHT_MS,
    NIGHTS,
    grow,
    name_lost_catalog,
    replicate,
    set_replicas,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import view_of_table
from tests.tables.nights import DAY_MS, clean

pytestmark = pytest.mark.long

# -- what a replica has not reached is held back


def dues(outcome: JobOutcome) -> dict[str, object]:
    """What a round did with the tombstones of one partition."""
    numbers = outcome.partitions[0]
    return {
        name: numbers.get(name) for name in ("picked", "tombstones_removed", "waiting_for_replicas")
    }


def test_a_tombstone_that_a_replica_lacks_outlives_its_horizon(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:7])
    clean(sandbox.session, str(name), NIGHT_MS)
    second = clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    # The tombstones at 2, 5, 8 and 11 are in the replica, those at 14, 17 and 20 are not.
    assert dues(second) == {
        "picked": True,
        "tombstones_removed": 4,
        "waiting_for_replicas": held_back(3),
    }
    (replica,) = replica_names(load(sandbox.session, name))
    assert second.partitions[0]["note"] == (
        f"3 tombstones and markers are due and wait for the replica {replica}, which ends at "
        "offset 12: run replicate_log"
    )
    tombstones = [r[0] for r in view_of_table(sandbox.session, name, 0).records if r[4] is None]
    assert tombstones == [14, 17, 20]

    # What is only held back is no reason for a round, and is told all the same.
    third = clean(sandbox.session, str(name), NIGHT_MS + 2 * DAY_MS)
    assert dues(third) == {
        "picked": False,
        "tombstones_removed": None,
        "waiting_for_replicas": held_back(3),
    }
    assert third.partitions[0]["note"] == second.partitions[0]["note"]
    waits = f"waits for the replica {replica}, which ends at offset 12: run replicate_log"
    assert waits in str(third.partitions[0]["reason"])
    replicate(sandbox, name)
    fourth = clean(sandbox.session, str(name), NIGHT_MS + 3 * DAY_MS)
    assert dues(fourth) == {
        "picked": True,
        "tombstones_removed": 3,
        "waiting_for_replicas": held_back(0),
    }


def held_back(tombstones: int) -> dict[str, int]:
    return {"tombstones": tombstones, "markers": 0}


def test_a_round_that_was_killed_holds_back_what_it_began_with(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step]
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:7])
    clean(sandbox.session, str(name), NIGHT_MS)
    kill_at.append(Step.ROUND_RECORDS)
    with pytest.raises(KilledError):
        clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    set_replicas(sandbox, name, None)
    settle(load(sandbox.session, name), "expire_segments")
    records = view_of_table(sandbox.session, name, 0).records
    assert [record[0] for record in records if record[4] is None] == [14, 17, 20]


@pytest.mark.parametrize(
    ("replica", "why"),
    [
        ("other", "which does not have the partition yet: run replicate_log"),
        ("gone", "which cannot be reached: once it can, run replicate_log"),
    ],
)
def test_a_replica_that_cannot_be_read_holds_back_everything(
    sandbox: LakeSandbox, name: TopicName, replica: str, why: str
) -> None:
    name_lost_catalog(sandbox)
    set_replicas(sandbox, name, f"{replica}.{name.cluster}")
    clean(sandbox.session, str(name), NIGHT_MS)
    outcome = clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert dues(outcome) == {
        "picked": False,
        "tombstones_removed": None,
        "waiting_for_replicas": held_back(4),
    }
    assert outcome.partitions[0]["note"] == (
        "4 tombstones and markers are due and wait for the replica "
        f"{name._replace(catalog=replica)}, {why}"
    )
    assert why in str(outcome.partitions[0]["reason"])
    set_replicas(sandbox, name, None)
    outcome = clean(sandbox.session, str(name), NIGHT_MS + 2 * DAY_MS)
    assert dues(outcome) == {"picked": True, "tombstones_removed": 4, "waiting_for_replicas": None}
