"""An undo on a topic's table replicas: they go back first, and are told once the topic is begun.

Between a request's last look at the topic and its commit on a replica, an undo may begin that knows
nothing of that yet. Being told, the replica takes no such commit any more; one that was faster is
found then, and the undo is planned again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.replica_tables import find_replica, replica_names
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, load
from ebbtide.log.state.topic_state import UNDONE
from ebbtide.runs.proposals import Order
from ebbtide.stages.undo_run.execution import execute_points
from ebbtide.stages.undo_run.going_back import GoingBack
from ebbtide.stages.undo_run.plan import UndoPlan
from ebbtide.stages.unfinished import settle


def find_on_replicas(primary: GoingBack, job: str, order: Order) -> Iterator[GoingBack]:
    """Find what goes back on each table replica that is there."""
    for name in replica_names(primary.topic):
        replica = find_replica(primary.topic.spark, name)
        if replica is None:
            continue
        if order.is_plan_only:
            check_unchanged(replica)
        else:
            replica = settle(count_own(replica), job)
        yield GoingBack.on_replica(replica, primary, order)


def follow(
    going: Sequence[GoingBack],
    planned: Sequence[UndoPlan],
    refused: Mapping[int, str],
    order: Order,
) -> Iterator[UndoPlan]:
    """Return the replicas' plans without the partitions that stay as they are on the topic."""
    for of_replica, plan in zip(going, planned, strict=True):
        if plan.points.keys() & refused.keys():
            yield of_replica.plan(order, refused, is_replica=True)
        else:
            yield plan


def take_back_on_replica(plan: UndoPlan) -> Topic:
    """Take the plan's points back on a replica; return it as the undo has left it."""
    left = execute_points(plan).topic
    count_own(load(left.spark, left.name))
    return left


def tell_replica(replica: Topic, of_primary: UndoPlan) -> None:
    """Leave the id of the primary's undo, which has begun, on a replica.

    CommitConflictError where its log start has moved since the undo has left it.
    """
    told = of_primary.undo.id if of_primary.points else of_primary.topic.properties.get(UNDONE)
    if told is not None:
        compare_and_set(replica, Step.UNDO_TOLD, partial(_told, told, replica))


def _told(undo_id: str, left: Topic, current: Topic) -> PropertyChanges:
    for partition, state in left.partitions.items():
        start = current.partitions[partition].log_start_offset
        if start > state.log_start_offset:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} to begin at "
                f"{state.log_start_offset}, where the undo has left it, found that a request has "
                f"moved it to {start} since; run the job again, which takes that back too"
            )
    return {UNDONE: undo_id}
