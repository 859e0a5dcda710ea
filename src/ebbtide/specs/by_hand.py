"""The jobs that somebody asks for, and that remove, hold, bring back, set or repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.errors import RequestError
from ebbtide.ledger import results
from ebbtide.numbers import MAX_LONG, whole_argument
from ebbtide.specs import erase_request, hold_request
from ebbtide.specs.delete_request import TIMEOUT_MS, parse_request_object
from ebbtide.specs.hold_request import Action, check_says_why
from ebbtide.specs.job_spec import (
    ASK,
    FREE_OF_ALL,
    Duty,
    Frame,
    JobSpec,
    OnAdopted,
    Purpose,
    Values,
    Work,
    ask_button,
    only_work,
    plan_button,
    section,
)
from ebbtide.specs.params import (
    CHOICE,
    DAY,
    FLAG,
    LINES,
    NUMBER,
    OFFSETS,
    SETTINGS,
    TEXT,
    TIME,
    UNSET_SETTINGS,
    JobParam,
    Suggestions,
    keys,
    like,
    plan_only,
    topic,
)
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE

SELECTORS = ("offsets", "timestamp", "age", "groups")  # of delete_records, one of which is given
_NAME = r"((kafka|ebbtide)\.[^=\s]+|" + MAX_SNAPSHOT_AGE.replace(".", r"\.") + ")"
_NAMES = f"kafka.*, ebbtide.* and {MAX_SNAPSHOT_AGE}"
_THEN = "End after the plan, which approve_plan executes until it expires."


def _given(variable: str, label: str, help: str, **more: Any) -> JobParam:
    """Return words about people, which a driver finds in its environment.

    A command line is seen by every user of its machine and stands in Airflow's log.
    """
    name = variable.removeprefix("EBBTIDE_GIVEN_").lower()
    return TEXT(name, label, help, variable=variable, **more)


def _by_partition(name: str, label: str, help: str, **more: Any) -> JobParam:
    items = like(r"^[0-9]+=[0-9]+$", "PARTITION=NUMBER, such as 0=1200")
    return LINES(name, label, help, items=items, **more)


def _connection(label: str, help: str) -> JobParam:
    return TEXT("connection", label, help, suggests=Suggestions.CONNECTIONS)


def delete_request(params: Values) -> dict[str, Any]:
    """Return a form's DeleteRecords request, checked: by offsets, by time or by consumer groups."""
    filled = {name: params[name] for name in SELECTORS if params.get(name)}
    if len(filled) != 1:
        raise RequestError(
            f"expected exactly one of {', '.join(SELECTORS)} in the form, "
            f"found {' and '.join(filled) or 'none'}"
        )
    topic, connection = params.get("topic"), params.get("connection")
    if "offsets" in filled:
        topics = [
            {"topic": name, "partitions": [_partition(*pair) for pair in wanted.items()]}
            for name, wanted in _by_topic(topic, filled["offsets"]).items()
        ]
    else:
        topics = [{"topic": topic or "", **filled}]
    if connection:
        topics = [{**asked, "connection": connection} for asked in topics]
    request = {"topics": topics, "timeout_ms": params.get("timeout_ms", TIMEOUT_MS)}
    parse_request_object(request)
    return request


def _by_topic(topic: str | None, offsets: Any) -> Mapping[str, Any]:
    by_topic = {topic: offsets} if topic else offsets
    if not by_topic or not all(isinstance(wanted, Mapping) for wanted in by_topic.values()):
        raise RequestError(
            'expected a topic and offsets by partition, {"0": 1200}, or no topic and offsets by '
            f"topic and partition, found topic {topic!r} and offsets {offsets!r}"
        )
    return by_topic


def _partition(partition: str, offset: Any) -> dict[str, int]:
    is_number = partition.isdecimal() and len(partition) <= 10
    if not is_number or type(offset) is not int or offset < -1:
        raise RequestError(
            f"expected a partition's number and an offset of -1 or more, found "
            f"{partition!r}: {offset!r}"
        )
    return {"partition": int(partition), "offset": offset}


def _check_changes(values: Values) -> None:
    if not any(values.get(name) for name in ("set", "unset", "from_source")):
        raise RequestError("expected a setting that changes, found all as they were")


def _check_hold(values: Values) -> None:
    if values.get("action") == Action.MAKE:
        check_says_why(values)


DELETE_RECORDS = JobSpec(
    name="delete_records",
    summary="a DeleteRecords request on the tables (KIP-107)",
    title="Delete records",
    intro="Removes the records below an offset from the topic and from every replica of it, as "
    "Kafka's DeleteRecords does. The log start offset moves up; only an undo moves it back. Fill "
    "in one of the four ways to say up to where.",
    purpose=Purpose.REMOVE,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "Up to where: offsets",
            topic(
                "<cluster>.<topic>; empty when the offsets below name several topics.",
                is_required=False,
            ),
            OFFSETS(
                "offsets",
                "Up to offset",
                'By partition, {"0": 1200, "1": -1}, where -1 is the high watermark; or '
                'by topic, {"demo.audit": {"0": 1200}}, when no topic is given.',
            ),
            help="Records below the offset go; -1 stands for the end of what consumers can read. "
            "A partition that stays empty is left as it is.",
        ),
        section(
            "Or: a time, an age, or what consumers have read",
            TIME(
                "timestamp",
                "Or: time (UTC)",
                "Up to the first record at or after it.",
                schema=like(
                    r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$",
                    "a time with its zone, such as 2026-11-24T10:00:00Z",
                ),
            ),
            TEXT(
                "age",
                "Or: age",
                "The same, counted back from the run's time: P30D is thirty days, PT12H "
                "twelve hours.",
                suggests=Suggestions.AGES,
                schema=like("^P.+$", "an ISO 8601 duration, such as P30D"),
            ),
            LINES(
                "groups",
                "Or: consumer groups",
                "One a line: up to the least offset that all of them have committed.",
                items={"minLength": 1},
            ),
            _connection(
                "Connection of the groups",
                "An Airflow connection of type kafka; empty where ebbtide.replicas names one.",
            ),
            help="In every partition.",
        ),
        section(
            "Timeout",
            NUMBER(
                "timeout_ms",
                "Timeout (ms)",
                "How long a replica may take before its partition answers -1.",
                default=TIMEOUT_MS,
                schema={"minimum": 1, "maximum": 3_600_000},
            ),
            plan_only(_THEN),
            is_open=False,
        ),
    ),
    checks=(delete_request,),
    request=delete_request,
    moves_low_watermarks=True,
    on_adopted=OnAdopted.WORKS,
    why="by offset, time, age or consumer groups",
    duties=FREE_OF_ALL,
    result=(results.DeletedPartition, results.DeletedTopic),
)

ERASE_KEYS = JobSpec(
    name="erase_keys",
    summary="keys of a topic get tombstones; a cleaner round removes the records before them",
    title="Erase keys",
    intro="Gives each key a tombstone, which supersedes all records of the key before it; the next "
    "cleaner round removes them. What became of each key is on the page Find a key.",
    purpose=Purpose.REMOVE,
    frame=Frame.ASKING,
    sections=(
        section(
            "What",
            topic("A compacted one, as <cluster>.<topic>."),
            *keys(erase_request.KEYS, "a million", is_stored=False),
        ),
        section(
            "Why",
            _given(
                "EBBTIDE_GIVEN_REQUESTED_BY",
                "Requested by",
                "Who asked for it.",
                is_required=True,
                schema={"minLength": 1},
            ),
            _given(
                "EBBTIDE_GIVEN_REASON",
                "Reason",
                "Why, such as the number of a request.",
                is_required=True,
                schema={"minLength": 1},
            ),
            help="Each tombstone says so.",
        ),
        section(
            "How the tombstones get there",
            _connection(
                "Connection",
                "An Airflow connection of type kafka that may write the topic; empty means "
                "its own.",
            ),
            FLAG("append", "Append to the tables", "Only for a topic that nobody writes any more."),
            NUMBER(
                "timeout_ms",
                "Timeout (ms)",
                "How long the tombstones may take to arrive in the tables.",
                default=600_000,
                schema={"minimum": 1, "maximum": 86_400_000},
            ),
            plan_only("End after the plan, which shows how many records the keys have."),
            is_open=False,
        ),
    ),
    needs_connections=True,
    execution_pool="default_pool",  # it waits for an ingest, which may need the only Spark slot
    on_adopted=OnAdopted.WORKS,
    why="rows leave, and the files that held them; older snapshots are the owner's",
    duties={**FREE_OF_ALL, **only_work(Work.APPEND)},
    result=(results.ErasedPartition, results.ErasedTopic),
)

CONFIGURE_TOPIC = JobSpec(
    name="configure_topic",
    summary="checks settings, shows what the next run would remove, and sets them",
    title="Change settings",
    intro="Checks every value before anything changes, and shows what the next night would remove "
    "by the new settings. Where it would remove something, somebody has to approve it.",
    purpose=Purpose.SETTINGS,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "Settings",
            topic(),
            SETTINGS(
                "set",
                "Set",
                "One NAME=VALUE a line, such as kafka.cleanup.policy=compact,delete.",
                items=like(f"^{_NAME}=.*$", f"NAME=VALUE, of {_NAMES}"),
            ),
            UNSET_SETTINGS(
                "unset",
                "Unset",
                "One NAME a line: back to the default.",
                items=like(f"^{_NAME}$", f"a NAME, of {_NAMES}"),
            ),
            help="Names and ranges are Kafka's for kafka.*, and ours for ebbtide.*. What each does "
            "is on the page of the topic.",
        ),
        section(
            "Brokers",
            FLAG(
                "from_source",
                "From source",
                "Take over every setting that the topic's brokers have differently.",
            ),
            plan_only("Show what would change and what the next night would remove.", default=True),
        ),
    ),
    buttons=(
        plan_button(
            "shows what would change and what the next night would remove; nothing is set."
        ),
        ask_button("sets it, once somebody has approved what the next night would remove.", "Set"),
    ),
    checks=(_check_changes,),
    needs_connections=True,
    on_adopted=OnAdopted.WORKS,
    why="settings are properties of the table",
    duties={},
    result=(results.ConfiguredPartition, results.ConfiguredTopic),
)

HOLD_RECORDS = JobSpec(
    name="hold_records",
    summary="makes, changes and ends holds on records of a topic",
    title="Hold records",
    intro="What a hold covers is kept when a rule or somebody removes it, for as long as the hold "
    "stands. A new hold, and one that covers more, acts at once; ending one, or covering less, "
    "has to be approved.",
    purpose=Purpose.RECOVER,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "What",
            CHOICE(
                "action",
                "Action",
                "Make a hold, change one, or end one.",
                choices=Action,
                is_required=True,
            ),
            topic(),
            TEXT(
                "hold",
                "Hold",
                "Its id, to change or to end it; empty for a new one.",
                suggests=Suggestions.HOLDS,
            ),
        ),
        section(
            "Which records",
            NUMBER(
                "partition",
                "Partition",
                "Empty means every partition.",
                suggests=Suggestions.PARTITIONS,
            ),
            NUMBER("first_offset", "From offset", "Included.", parse=whole_argument(most=MAX_LONG)),
            NUMBER(
                "end_offset",
                "Before offset",
                "Not included.",
                schema={"minimum": 1},
                parse=whole_argument(most=MAX_LONG),
            ),
            TIME("event_time_from", "From time (UTC)", "Included."),
            TIME("event_time_until", "Before time (UTC)", "Not included."),
            help="All that is filled in applies together, with the keys below. Nothing filled in "
            "means all records.",
        ),
        section(
            "Why",
            _given("EBBTIDE_GIVEN_CASE_ID", "Case", "Such as the number of a lawsuit."),
            _given("EBBTIDE_GIVEN_REASON", "Reason", "Why the records are needed."),
            _given("EBBTIDE_GIVEN_OWNER", "Owner", "Who is asked when it is to be reviewed."),
            DAY(
                "review_date",
                "Review date",
                "From the day after, reports and pages warn until somebody has looked.",
            ),
            help="A new hold needs a case, a reason and an owner.",
        ),
        section(
            "Which keys",
            *keys(hold_request.HOLD_KEYS, "10,000", is_stored=True),
            plan_only(_THEN),
            help="Empty means every key. The hold stores their SHA-256 alone.",
        ),
    ),
    buttons=(
        plan_button("shows what would be held."),
        ask_button(
            "holds more at once; to hold less, or nothing any more, somebody has to approve.",
            "Send",
        ),
    ),
    checks=(_check_hold,),
    is_hold=True,
    on_adopted=OnAdopted.WORKS,
    why="what ebbtide removes is copied before",
    duties={},
    result=(results.HeldPartition, results.HeldTopic),
)

REPAIR_STATE = JobSpec(
    name="repair_state",
    summary="takes back what others did to a topic, or rebuilds its state from its tables",
    title="Repair a topic",
    intro="A topic stands still once somebody else added or removed its rows, or edited its state. "
    "The plan shows what was done and when; the repair takes it back, or keeps it.",
    purpose=Purpose.RECOVER,
    frame=Frame.ASKING,
    sections=(
        section(
            "Topic",
            topic(),
            FLAG(
                "keep_changes",
                "Keep changes",
                "Leave the tables as others left them and rebuild the state from them, "
                "instead of taking their change back.",
            ),
        ),
        section(
            "If the state is lost",
            _by_partition(
                "log_start_offset",
                "Log start offsets",
                "One PARTITION=NUMBER a line: where a partition starts, if its batches do not "
                "tell.",
                suggests=Suggestions.PARTITIONS,
            ),
            _by_partition(
                "max_event_time_ms",
                "Largest event times",
                "One PARTITION=NUMBER a line: the largest, in milliseconds, that a partition "
                "ever held.",
            ),
            plan_only(
                "End after the plan, which shows what was done and what the repair would do; "
                "approve_plan executes it until it expires.",
                default=True,
            ),
            is_open=False,
        ),
    ),
    buttons=(plan_button("shows what was done, and the repair; nothing is changed."), ASK),
    needs_state=False,
    on_adopted=OnAdopted.REFUSES,
    why="run abandon_table, then adopt_table, which reads the state from the table",
    duties={},
    result=(results.RepairedPartition, results.RepairedTopic),
)

UNDO_RUN = JobSpec(
    name="undo_run",
    summary="gives back what a run removed, and the later runs of the same partitions with it",
    title="Undo a run",
    intro="Brings back what a run has removed from a topic, as long as its files are kept. Runs "
    "that removed something later are taken back with it: the plan lists them. What was ingested "
    "since stays. For seven days after it nothing is removed from these partitions, so that "
    "somebody can change the setting first.",
    purpose=Purpose.RECOVER,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "Which run",
            topic(),
            TEXT(
                "run",
                "Run",
                "The id of the run that removed, as lake.ebbtide.runs has it.",
                is_required=True,
                suggests=Suggestions.RUNS,
                schema={"minLength": 1},
            ),
            plan_only(_THEN),
        ),
    ),
    buttons=(plan_button("shows what would come back; nothing is changed."), ASK),
    moves_low_watermarks=True,
    on_adopted=OnAdopted.WORKS,
    why="as long as the table's snapshots are there",
    duties={
        **FREE_OF_ALL,
        Work.UNDO: Duty.RESUME,
        Work.APPEND: Duty.REFUSE,
        Work.REPLICATION: Duty.REFUSE,
    },
    result=(results.UndonePartition, results.UndoneTopic),
)
