"""The stages of a nightly run, and the DAGs that run them: nightly, now, or for stored plans."""

from __future__ import annotations

from ebbtide.errors import RequestError
from ebbtide.ledger import results
from ebbtide.specs.erase_request import parse_from_offset
from ebbtide.specs.job_spec import (
    FREE_OF_ALL,
    START,
    Duty,
    FormSpec,
    Frame,
    JobSpec,
    OnAdopted,
    Purpose,
    Values,
    Work,
    ask_button,
    plan_button,
    section,
)
from ebbtide.specs.params import (
    CHOICES,
    FLAG,
    OFFSET_LINES,
    SEVERAL,
    Suggestions,
    like,
    now,
    plan_only,
    topic,
    topics,
)
from ebbtide.specs.sources import topics_per_application

MARK_TOMBSTONES = JobSpec(
    name="mark_tombstones",
    summary="finds the tombstones among the records not marked yet (KIP-87)",
    title="Mark tombstones",
    intro="Marks records as tombstones by the topic's settings ebbtide.tombstone.*. A changed "
    "rule applies only to records that are not marked yet. To mark older records again, "
    "give the offset to start from.",
    purpose=Purpose.RETENTION,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "Mark again",
            topic(),
            OFFSET_LINES(
                "from_offset",
                "From offset",
                "One PARTITION:OFFSET per line, or OFFSET for the remaining partitions. Empty: "
                "only records that are not marked yet.",
                parse=parse_from_offset,
                items=like("^([0-9]+:)?[0-9]+$", "PARTITION:OFFSET or OFFSET, such as 0:1200"),
                schema={"minItems": 1},
            ),
            plan_only(
                "Show which records would be marked, unmarked or quarantined, and end.",
                default=True,
            ),
            help="Empty: only the partition's new records are marked. Offsets that a cleaner "
            "round has cleaned are refused.",
        ),
    ),
    buttons=(
        plan_button("shows how many records would change; nothing is changed."),
        ask_button("marks the records; if some would be quarantined, asks for approval first."),
    ),
    on_adopted=OnAdopted.DOES_NOTHING,
    why="the table's own columns show which rows are tombstones",
    duties={},
    result=(results.MarkedPartition, results.MarkedTopic),
)

CLEAN_LOG = JobSpec(
    name="clean_log",
    summary="one cleaner round on each log that is due for one (KIP-534)",
    on_adopted=OnAdopted.WORKS,
    why="reads new rows, and compacts",
    duties={**FREE_OF_ALL, Work.ROUND: Duty.RESUME},
    result=(results.CleanedPartition, results.CleanedTopic),
)

EXPIRE_SEGMENTS = JobSpec(
    name="expire_segments",
    summary="retention by size, wall clock and event time (KIP-870)",
    on_adopted=OnAdopted.WORKS,
    why="reads new rows; segments or single records expire",
    duties=FREE_OF_ALL,
    result=(results.ExpiredPartition, results.ExpiredTopic),
)

EXPIRE_SNAPSHOTS = JobSpec(
    name="expire_snapshots",
    summary="expires snapshots, rewrites files and frees bytes",
    on_adopted=OnAdopted.WORKS,
    why="deletes only released hold copies; the owner expires snapshots",
    duties={**FREE_OF_ALL, Work.MERGE: Duty.RESUME},
    result=(results.OfPartition, results.SnapshotsTopic),
)

# Those that somebody may choose, in the order of a night.
STAGES = (CLEAN_LOG.name, EXPIRE_SEGMENTS.name, EXPIRE_SNAPSHOTS.name)


def _check_stages(values: Values) -> None:
    if not values.get("stages"):
        raise RequestError(f"expected at least one stage of {', '.join(STAGES)}, found none")


APPLY_RETENTION = FormSpec(
    name="apply_retention",
    title="Apply retention now",
    intro="Runs the stages of the next nightly run now: plans each stage by the topics' settings, "
    "shows the removals by rule, and asks for approval.",
    purpose=Purpose.RETENTION,
    frame=Frame.ASKING,
    sections=(
        section("Topics", topics(SEVERAL, "all that are enabled")),
        section(
            "Stages",
            CHOICES(
                "stages",
                "Stages",
                "clean_log compacts. expire_segments removes segments past a limit of time or "
                "size. expire_snapshots frees the bytes of removed records.",
                default=list(STAGES[:2]),
                is_required=True,
                choices=STAGES,
                items={"enum": list(STAGES)},
                schema={"minItems": 1, "examples": list(STAGES)},
            ),
            plan_only("Store the plan and end. approve_plan executes it until it expires."),
        ),
        section("Time", now("The time that each stage takes for its rules"), is_open=False),
    ),
    checks=(_check_stages,),
)

NIGHTLY_RETENTION = FormSpec(
    name="nightly_retention",
    title="Run nightly retention now",
    intro="Starts a nightly run now: it removes records by the topics' settings, within their "
    "guards, without an approval. For a plan and an approval, use Apply retention now.",
    purpose=Purpose.RETENTION,
    frame=Frame.GROUPED,
    sections=(
        section("Topics", topics(SEVERAL, "all that are enabled")),
        section(
            "Time and size",
            topics_per_application(),
            now("The time that the run takes for its rules"),
            FLAG(
                "allow_future_now",
                "Allow a future now",
                "For rehearsals on copies only: removes records that are not due yet.",
            ),
            is_open=False,
        ),
    ),
    buttons=(START,),
)

APPROVE_PLAN = FormSpec(
    name="approve_plan",
    title="Ask for the approval of a plan",
    intro="Asks for the approval of stored plans and executes them after it. All plans of a run "
    "are approved or rejected together.",
    purpose=Purpose.APPROVAL,
    frame=Frame.ASKING,
    sections=(
        section(
            "Plans",
            SEVERAL(
                "plans",
                "Plans",
                "One plan id per line. The list has the plans that are not rejected, executed or "
                "expired, except plans of erase_keys: plans store no keys.",
                is_required=True,
                suggests=Suggestions.PLANS,
                items=like(
                    "^[a-z_]+-[0-9]{8}-[0-9a-f]{8}$",
                    "the id of a plan, such as clean_log-20261122-5f0c1a2b",
                ),
                schema={"minItems": 1},
            ),
        ),
    ),
    buttons=(
        ask_button(
            "waits for an answer; without an approval nothing is changed.",
            "Ask for approval",
        ),
    ),
)
