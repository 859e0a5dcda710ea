"""hold_records: make, change and end holds, in the topic's catalog and those of table replicas.

Order: store the event, so that running jobs see the hold; then copy held records that the log has
already lost, from older snapshots. Ending or narrowing a hold needs an approval.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import PlanError, RequestError
from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.commits import Step, current_commits
from ebbtide.iceberg.topics import (
    Topic,
    check_is_no_replica,
    check_still_adopted,
    compare_and_set,
    find_replica,
    load,
    replica_names,
)
from ebbtide.jobs.erase_keys.plan import keys_of_file
from ebbtide.ledger.holds import Hold, HoldEvent, new_hold_id, newest_events, that_keep
from ebbtide.ledger.plans import LeavingRows, PartitionSummary, RuleNumbers, partition_summary
from ebbtide.moments import following, machine_clock
from ebbtide.runner.holds import (
    Covered,
    add_kept,
    append_hold,
    check_has_key_bytes,
    count_covered,
    hand_on_holds,
    keep_removed,
    offsets_let_go,
    read_holds,
    standing_holds,
)
from ebbtide.runner.job import Job, Parameters, PlanRequest, Proposal
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Encoding, decode_keys
from ebbtide.specs.hold_request import (
    CONDITIONS,
    EVENTS,
    HOLD_KEYS,
    WORDS,
    Action,
    hashes_of,
    hold_asked,
    narrows,
)
from ebbtide.state.topic_state import HELD, TIDIED
from ebbtide.text import number

ENDED = "hold_ended"


NO_RUN = "-"  # the run id of an event outside any run


@dataclass(frozen=True, slots=True)
class HoldPlan(Proposal):
    """A hold before and after the request, and the copies that it no longer covers."""

    topic: Topic
    action: Action
    before: Hold | None
    after: Hold
    covered: Covered = field(default_factory=lambda: Covered(Counter(), Counter()))
    let_go: Mapping[int, BitMap64] = field(default_factory=dict)  # offsets of released copies

    @property
    def is_narrower(self) -> bool:
        """True if the hold covers less than before, so that it needs an approval."""
        return self.before is not None and narrows(self.before, self.after)

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic={"action": str(self.action), "hold": str(self.after)})
        for partition in self.topic.partitions:
            outcome.partitions[partition] = self.topic.offsets_of(partition) | {
                "covered": self.covered.records[partition],
                "released": len(self.let_go.get(partition, ())),
            }
        if erased := self.covered.erased.total():
            outcome.topic["erased"] = erased
        outcome.add_notes(self._limits())
        return outcome

    def _limits(self) -> Iterator[str]:
        """Yield what the hold does not keep."""
        if self.topic.is_adopted:
            yield (
                "the hold copies only records that ebbtide removes, not records that other tools "
                "delete from the table"
            )
        if live := self.topic.config.live_replicas:
            names = ", ".join(f"kafka:{connection}" for connection in live)
            yield (
                f"the hold does not protect {names}: records that the brokers delete before they "
                "are ingested are lost"
            )
        if erased := self.covered.erased.total():
            yield (
                f"the hold does not keep {number(erased)} records that are still in the log, "
                "because their keys were erased"
            )

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the copies that the hold releases."""
        return dict(self.let_go)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return the number of released copies, even 0, if the hold is narrowed or ended."""
        if not self.is_narrower:
            return {}
        summaries = {}
        for partition in self.topic.partitions:
            rows = LeavingRows(records=len(self.let_go.get(partition, ())))
            summary = partition_summary(rows, {})
            summary["rules"][ENDED] = RuleNumbers(records=rows.records)
            summaries[partition] = summary
        return summaries


def _check(args: Namespace) -> None:
    args.key_hashes = []
    if args.plan:
        return
    if (args.action == Action.MAKE) is bool(args.hold):
        found = "none" if not args.hold else f"--hold {args.hold}"
        raise RequestError(
            f"expected --hold to change or end a hold, and no --hold to make one, found {found}"
        )
    keys = decode_keys(os.environ.get(HOLD_KEYS, "").split("\n"), Encoding(args.encoding))
    if keys and args.keys_file:
        raise RequestError("expected keys or a keys file, found both")
    args.key_hashes = hashes_of(keys)


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    asked = {name: getattr(args, name) for name in (*CONDITIONS, *WORDS, "action")}
    asked |= {"hold_id": args.hold, "by": args.triggered_by or args.requested_by}
    asked["key_hashes"] = args.key_hashes
    return dict.fromkeys(args.topic, asked)


def resolve_hold(spark: SparkSession, name: TopicName, request: PlanRequest) -> Parameters:
    """Add the hashes of a file's keys, and the id of a new hold, so that a stored plan has them.

    An earlier attempt of this run may have stored the hold already; its id is used again. Raise
    RequestError if the file has no keys.
    """
    asked, args = request.parameters, request.given
    if args.keys_file:
        keys = keys_of_file(spark, args.keys_file, Encoding(args.encoding))
        if not keys:  # a hold without keys covers every key
            raise RequestError(f"expected one key per line in {args.keys_file}, found none")
        asked = {**asked, "key_hashes": hashes_of(keys)}
    if Action(asked["action"]) is not Action.MAKE or asked.get("hold_id"):
        return asked
    made = (_run_id(), HoldEvent.MADE)
    before = [h.hold_id for h in read_holds(spark, name) if (h.run_id, h.event) == made]
    is_again = before and made[0] != NO_RUN
    return {**asked, "hold_id": before[0] if is_again else new_hold_id(machine_clock())}


def _run_id() -> str:
    run = current_commits()
    return run.run_id if run is not None and run.run_id else NO_RUN


def propose_hold(spark: SparkSession, name: TopicName, request: PlanRequest) -> HoldPlan:
    """Plan an event of a hold."""
    topic, asked = load(spark, name), request.parameters
    check_is_no_replica(topic, "hold records of")
    run_id, action = _run_id(), Action(asked["action"])
    events = [h for h in newest_events(read_holds(spark, name)) if h.hold_id == asked["hold_id"]]
    before = events[0] if events else None
    if before is not None and (before.run_id, before.event) == (run_id, EVENTS[action]):
        # A killed attempt of this run has stored the event.
        return HoldPlan(topic, action, before, before)
    if asked.get("key_hashes"):
        check_has_key_bytes(topic)
    asked = {**asked, "approver": request.approved_by}
    at = following([] if before is None else [before.at], machine_clock())
    after = hold_asked(asked, str(name), before, at=at, run_id=run_id)
    if after.partition is not None and after.partition not in topic.partitions:
        known = ", ".join(map(str, topic.partitions))
        raise RequestError(f"expected a partition of {name} ({known}), found {after.partition}")
    plan = HoldPlan(topic, action, before, after)
    if action is not Action.END:
        plan = replace(plan, covered=count_covered(topic, after))
    return replace(plan, let_go=offsets_let_go(topic, after)) if plan.is_narrower else plan


def execute_hold(plan: HoldPlan) -> JobOutcome:
    """Store the event in all catalogs, then copy records that the log has already lost.

    Raise PlanError if the hold would cover less and the plan is not approved.
    """
    topic, outcome = plan.topic, plan.outcome()
    if plan.after is not plan.before:
        if plan.is_narrower and not plan.after.approver:
            raise PlanError(
                f"expected an approved plan, because {plan.after} would cover less, found a "
                "request without a plan. The hold was not changed. Make a plan with --plan-only"
            )
        append_hold(topic.spark, topic.name, plan.after, partial(check_still_adopted, topic))
    topics = [topic, *_hand_on(topic)]
    if plan.action is Action.END:
        for topic_or_replica in topics:
            _forget_held_table(topic_or_replica)
    kept: dict[str, int] = {}
    for topic_or_replica in topics:
        if plan.action is Action.END or plan.is_narrower:
            # The next expire_snapshots must not skip the topic: it has copies to delete.
            compare_and_set(topic_or_replica, Step.TIDIED, lambda _: {TIDIED: None})
        else:
            add_kept(kept, keep_removed(topic_or_replica))
    if kept:
        outcome.topic["copied_for_holds"] = kept
    return outcome


def _forget_held_table(topic: Topic) -> None:
    """Clear the recorded id of a dropped table of held records, so that a new one can be made.

    Do nothing while another hold copies records.
    """
    spark, name = topic.spark, topic.name
    keeping = that_keep(standing_holds(spark, name, machine_clock()))
    if not keeping and not table_exists(spark, name.held_table):
        compare_and_set(topic, Step.HELD_TABLE, lambda _: {HELD: None})


def _hand_on(topic: Topic) -> list[Topic]:
    """Store the topic's holds in the catalogs of its replicas; return the replicas that exist."""
    replicas = []
    for name in replica_names(topic):
        replica = find_replica(topic.spark, name)
        if replica is not None:
            hand_on_holds(topic.spark, topic.name, name)
            replicas.append(replica)
    return replicas


HOLD_RECORDS: Job[HoldPlan] = Job(
    "hold_records",
    propose_hold,
    execute_hold,
    asked=_asked,
    check=_check,
    is_by_hand=lambda _: True,
    needs_approval=lambda plan: plan.is_narrower,
    resolve=resolve_hold,
)
