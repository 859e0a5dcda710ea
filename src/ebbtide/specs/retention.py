"""The stages of a night, and the DAGs that run them: each night, now, or for plans that wait."""

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
    intro="Judges by the topic's settings ebbtide.tombstone.* which records are tombstones. A "
    "changed rule applies only to records that no run has judged yet, unless you say from which "
    "offset on they are judged again.",
    purpose=Purpose.RETENTION,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "Judge again",
            topic(),
            OFFSET_LINES(
                "from_offset",
                "From offset",
                "One PARTITION:OFFSET a line, or OFFSET for all others; empty means what "
                "is not marked yet.",
                parse=parse_from_offset,
                items=like("^([0-9]+:)?[0-9]+$", "PARTITION:OFFSET or OFFSET, such as 0:1200"),
                schema={"minItems": 1},
            ),
            plan_only("Show what would be marked, unmarked and quarantined.", default=True),
            help="A partition that stays empty gets only its new records judged. Offsets that a "
            "cleaner round has covered are refused.",
        ),
    ),
    buttons=(
        plan_button("shows how many records would change; nothing is changed."),
        ask_button("does the same, asks where records would go to quarantine, and marks."),
    ),
    on_adopted=OnAdopted.PASSES_BY,
    why="the table's own columns tell which rows are tombstones",
    duties={},
    result=(results.MarkedPartition, results.MarkedTopic),
)

CLEAN_LOG = JobSpec(
    name="clean_log",
    summary="one cleaner round on each log that is due for one (KIP-534)",
    on_adopted=OnAdopted.WORKS,
    why="looks at what has arrived, and compacts",
    duties={**FREE_OF_ALL, Work.ROUND: Duty.RESUME},
    result=(results.CleanedPartition, results.CleanedTopic),
)

EXPIRE_SEGMENTS = JobSpec(
    name="expire_segments",
    summary="retention by size, wall clock and event time (KIP-870)",
    on_adopted=OnAdopted.WORKS,
    why="looks at what has arrived; segments or single rows",
    duties=FREE_OF_ALL,
    result=(results.ExpiredPartition, results.ExpiredTopic),
)

EXPIRE_SNAPSHOTS = JobSpec(
    name="expire_snapshots",
    summary="frees files that no kept snapshot needs",
    on_adopted=OnAdopted.WORKS,
    why="frees kept records alone; snapshots are the owner's",
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
    intro="Does what the next night would do, now: plans each stage by the topics' settings, shows "
    "what would go by which rule, and asks.",
    purpose=Purpose.RETENTION,
    frame=Frame.ASKING,
    sections=(
        section("Topics", topics(SEVERAL, "all that are enabled")),
        section(
            "Stages",
            CHOICES(
                "stages",
                "Stages",
                "clean_log compacts; expire_segments removes what is past a limit of time "
                "or size; expire_snapshots frees the disk of what was removed before.",
                default=list(STAGES[:2]),
                is_required=True,
                choices=STAGES,
                items={"enum": list(STAGES)},
                schema={"minItems": 1, "examples": list(STAGES)},
            ),
            plan_only("End after the plan, which approve_plan executes until it expires."),
        ),
        section("Clock", now("The clock of all stages"), is_open=False),
    ),
    checks=(_check_stages,),
)

NIGHTLY_RETENTION = FormSpec(
    name="nightly_retention",
    title="Run a night now",
    intro="Does at once what the night does: removes what the topics' settings say, within their "
    "guards, and asks nobody. Apply retention now does the same with a plan and an approval.",
    purpose=Purpose.RETENTION,
    frame=Frame.GROUPED,
    sections=(
        section("Topics", topics(SEVERAL, "all that are enabled")),
        section(
            "Clock and size",
            topics_per_application(),
            now("The clock of the whole run"),
            FLAG(
                "allow_future_now",
                "Allow a future now",
                "For rehearsals on copies only: removes what may not go before then.",
            ),
            is_open=False,
        ),
    ),
    buttons=(START,),
)

APPROVE_PLAN = FormSpec(
    name="approve_plan",
    title="Ask for the approval of a plan",
    intro="Asks whether plans that are kept may be executed, and executes them once somebody has "
    "approved them. They are approved or rejected together.",
    purpose=Purpose.APPROVAL,
    frame=Frame.ASKING,
    sections=(
        section(
            "Plans",
            SEVERAL(
                "plans",
                "Plans",
                "One plan id a line: plans that nobody has rejected or executed, and that "
                "have not expired. A plan of erase_keys is not among them: it keeps no keys.",
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
            "waits until somebody answers; without an approval nothing is changed.",
            "Ask for approval",
        ),
    ),
)
