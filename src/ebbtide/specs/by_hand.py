"""Jobs that a person starts: they remove, hold, restore, configure or repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.errors import RequestError
from ebbtide.ledger import results
from ebbtide.specs import erase_request, hold_request
from ebbtide.specs.delete_request import TIMEOUT_MS, parse_request_object
from ebbtide.specs.hold_request import Action, check_says_why
from ebbtide.specs.job_spec import (
    ASK,
    FREE_OF_ALL,
    Button,
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
    offset_range,
    plan_only,
    topic,
)
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE

SELECTORS = ("offsets", "timestamp", "age", "groups")  # of delete_records, one of which is given
_NAME = r"((kafka|ebbtide)\.[^=\s]+|" + MAX_SNAPSHOT_AGE.replace(".", r"\.") + ")"
_NAMES = f"kafka.*, ebbtide.* and {MAX_SNAPSHOT_AGE}"
_THEN = "Store the plan and end. approve_plan executes it until it expires."


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
        raise RequestError(
            "expected at least one changed setting, found none. Change or unset a setting"
        )


def _check_hold(values: Values) -> None:
    if values.get("action") == Action.MAKE:
        check_says_why(values)


DELETE_RECORDS = JobSpec(
    name="delete_records",
    summary="a DeleteRecords request on the tables (KIP-107)",
    title="Delete records",
    intro="Removes the records below an offset from the topic and all its replicas, like Kafka's "
    "DeleteRecords. This advances the log start offset; only an undo moves it back. Give "
    "offsets, a time, an age or consumer groups.",
    purpose=Purpose.REMOVE,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "By offset",
            topic(
                "<cluster>.<topic>. Empty: the offsets below name the topics.",
                is_required=False,
            ),
            OFFSETS(
                "offsets",
                "Before offset",
                'Offsets by partition: {"0": 1200, "1": -1}; -1: the high watermark. Without a '
                'topic above, by topic: {"demo.audit": {"0": 1200}}.',
            ),
            help="Removes all records below the offset. -1: the high watermark. Empty: the "
            "partition is not changed.",
        ),
        section(
            "Or by time, age or consumer groups",
            TIME(
                "timestamp",
                "Or: time (UTC)",
                "Removes all records before the first one at or after this time.",
                schema=like(
                    r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$",
                    "a time with its zone, such as 2026-11-24T10:00:00Z",
                ),
            ),
            TEXT(
                "age",
                "Or: age",
                "A time before the run, as an ISO 8601 duration: P30D (30 days), PT12H (12 hours).",
                suggests=Suggestions.AGES,
                schema=like("^P.+$", "an ISO 8601 duration, such as P30D"),
            ),
            LINES(
                "groups",
                "Or: consumer groups",
                "One group per line. Removes the records below the lowest offset that the groups "
                "have committed.",
                items={"minLength": 1},
            ),
            _connection(
                "Connection of the groups",
                "Airflow connection of type kafka. Empty: the one in ebbtide.replicas.",
            ),
            help="Applies to every partition.",
        ),
        section(
            "Timeout",
            NUMBER(
                "timeout_ms",
                "Timeout (ms)",
                "How long to wait for a replica. The low watermark is -1 if one does not answer.",
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
    summary="appends tombstones for keys; a cleaner round removes the keys' older records",
    title="Erase keys",
    intro="Writes a tombstone for each key. The next cleaner round removes the key's older "
    "records. On an adopted table, deletes the key's rows. The page Erasures shows when the "
    "records are off the disk.",
    purpose=Purpose.REMOVE,
    frame=Frame.ASKING,
    sections=(
        section(
            "What",
            topic("A compacted or adopted topic, as <cluster>.<topic>."),
            *keys(erase_request.KEYS, "a million", is_stored=False),
        ),
        section(
            "Why",
            _given(
                "EBBTIDE_GIVEN_REQUESTED_BY",
                "Requested by",
                "Person or office that asked for the erasure.",
                is_required=True,
                schema={"minLength": 1},
            ),
            _given(
                "EBBTIDE_GIVEN_REASON",
                "Reason",
                "Reason, such as a request number.",
                is_required=True,
                schema={"minLength": 1},
            ),
            help="Stored with the erasure, its tombstones and its certificates. No erasure removes "
            "them: do not name the person whose keys are erased.",
        ),
        section(
            "Delivery and certificate",
            _connection(
                "Connection",
                "Airflow connection of type kafka that may write the topic. Empty: the topic's "
                "own connection.",
            ),
            FLAG("append", "Append to the tables", "Only for a topic without a source."),
            NUMBER(
                "timeout_ms",
                "Timeout (ms)",
                "How long to wait for the tombstones in the tables.",
                default=600_000,
                schema={"minimum": 1, "maximum": 86_400_000},
            ),
            FLAG(
                "certify",
                "Certify at the end",
                "Search every byte of the topic's tables for the keys, and sign a certificate of "
                "what was found.",
                default=True,
            ),
            plan_only("Show how many records the keys have, and end."),
            is_open=False,
        ),
    ),
    needs_connections=True,
    execution_pool="default_pool",  # it waits for an ingest, which may need the only Spark slot
    on_adopted=OnAdopted.WORKS,
    why="deletes the rows and rewrites their files; the owner expires older snapshots",
    duties={**FREE_OF_ALL, **only_work(Work.APPEND)},
    result=(results.ErasedPartition, results.ErasedTopic),
)

CERTIFY_ERASURE = JobSpec(
    name="certify_erasure",
    summary="searches every byte of a topic's tables for keys or offsets, and signs what it found",
    title="Certify an erasure",
    intro="Searches every object of the topic's tables, of its replicas' and of ebbtide's own for "
    "keys or offsets, and signs a certificate of what was searched and found. Nothing of the "
    "topic changes.",
    purpose=Purpose.REMOVE,
    frame=Frame.DIRECT,
    sections=(
        section(
            "What",
            topic("The topic, as <cluster>.<topic>."),
            *keys(erase_request.KEYS, "a million", is_stored=False),
            TEXT(
                "erasure",
                "Run of the erasure",
                "Run id of the erase_keys run that erased these keys. Give all its keys. The "
                "certificate then names who requested and who approved it.",
                schema={"minLength": 1},
            ),
            help="Keys, a range of offsets, or both.",
        ),
        section(
            "Or: a range of offsets",
            *offset_range("Partition of the offsets."),
            help="All three fields, or none. The search finds each Parquet file with a record of "
            "the range.",
        ),
    ),
    buttons=(Button(name="start", label="Certify", help="searches immediately."),),
    is_planned=False,
    on_adopted=OnAdopted.WORKS,
    why="searches the table, the state and the copies for holds",
    duties={},
    result=(results.OfPartition, results.CertifiedTopic),
)

CONFIGURE_TOPIC = JobSpec(
    name="configure_topic",
    summary="changes settings, after showing what the next nightly run would remove",
    title="Change settings",
    intro="Checks every value first and shows what the next nightly run would remove with the new "
    "settings. If it would remove records, the change needs an approval.",
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
                "One NAME=VALUE per line, such as kafka.cleanup.policy=compact,delete.",
                items=like(f"^{_NAME}=.*$", f"NAME=VALUE, of {_NAMES}"),
            ),
            UNSET_SETTINGS(
                "unset",
                "Unset",
                "One NAME per line: resets it to its default.",
                items=like(f"^{_NAME}$", f"a NAME, of {_NAMES}"),
            ),
            help="kafka.*: names and ranges are Kafka's. ebbtide.*: ebbtide's own. The topic's "
            "page shows the effect of each setting.",
        ),
        section(
            "Brokers",
            FLAG(
                "from_source",
                "From source",
                "Adopt each setting whose value differs on the topic's brokers.",
            ),
            plan_only(
                "Show the changes and what the next nightly run would remove, and end.",
                default=True,
            ),
        ),
    ),
    buttons=(
        plan_button(
            "shows the changes and what the next nightly run would remove; nothing is changed."
        ),
        ask_button(
            "changes the settings; if the next nightly run would remove records, after an "
            "approval.",
            "Set",
        ),
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
    intro="ebbtide copies held records before a job removes them, and retains the copies until "
    "the hold ends. Making or widening a hold takes effect immediately; narrowing or ending "
    "one needs an approval.",
    purpose=Purpose.RECOVER,
    frame=Frame.ASKING,
    needs_topic=True,
    sections=(
        section(
            "What",
            CHOICE(
                "action",
                "Action",
                "Make, change or end a hold.",
                choices=Action,
                is_required=True,
            ),
            topic(),
            TEXT(
                "hold",
                "Hold",
                "Id of the hold to change or end. Empty for a new hold.",
                suggests=Suggestions.HOLDS,
            ),
        ),
        section(
            "Which records",
            *offset_range("Empty: every partition."),
            TIME("event_time_from", "From time (UTC)", "Inclusive."),
            TIME("event_time_until", "Before time (UTC)", "Exclusive."),
            help="A record is held if it matches every field that is filled in, and the keys "
            "below. All empty: all records.",
        ),
        section(
            "Why",
            _given("EBBTIDE_GIVEN_CASE_ID", "Case", "Such as a case number."),
            _given("EBBTIDE_GIVEN_REASON", "Reason", "Why the records must be retained."),
            _given("EBBTIDE_GIVEN_OWNER", "Owner", "Person to ask at the review."),
            DAY(
                "review_date",
                "Review date",
                "After this day, reports and pages ask for a review of the hold.",
            ),
            help="Required for a new hold: case, reason and owner.",
        ),
        section(
            "Which keys",
            *keys(hold_request.HOLD_KEYS, "10,000", is_stored=True),
            plan_only(_THEN),
            help="Empty: every key. The hold stores only the SHA-256 of each key.",
        ),
    ),
    buttons=(
        plan_button("shows which records would be held. Nothing is changed."),
        ask_button(
            "holds more immediately; to hold less, or to end the hold, asks for approval.",
            "Send",
        ),
    ),
    checks=(_check_hold,),
    is_hold=True,
    on_adopted=OnAdopted.WORKS,
    why="records are copied before ebbtide removes them",
    duties={},
    result=(results.HeldPartition, results.HeldTopic),
)

REPAIR_STATE = JobSpec(
    name="repair_state",
    summary="rolls back a foreign change of a topic, or accepts it and rebuilds the state",
    title="Repair a topic",
    intro="A topic is blocked after a foreign change: another tool or person added or removed its "
    "rows, or edited its state. The plan shows the change; the repair rolls it back or "
    "accepts it.",
    purpose=Purpose.RECOVER,
    frame=Frame.ASKING,
    sections=(
        section(
            "Topic",
            topic(),
            FLAG(
                "keep_changes",
                "Keep changes",
                "Accept the foreign change and rebuild the state from the tables, instead of "
                "rolling the change back.",
            ),
        ),
        section(
            "If the state is lost",
            _by_partition(
                "log_start_offset",
                "Log start offsets",
                "One PARTITION=NUMBER per line: the log start offset, if the batches do not show "
                "it.",
                suggests=Suggestions.PARTITIONS,
            ),
            _by_partition(
                "max_event_time_ms",
                "Largest event times",
                "One PARTITION=NUMBER per line: the largest event time that the partition ever "
                "had, in milliseconds.",
            ),
            plan_only(
                "Show the foreign change and the repair, store the plan and end. approve_plan "
                "executes it until it expires.",
                default=True,
            ),
            is_open=False,
        ),
    ),
    buttons=(plan_button("shows the foreign change and the repair; nothing is changed."), ASK),
    needs_state=False,
    on_adopted=OnAdopted.REFUSES,
    why="run abandon_table, then adopt_table, which reads the state from the table",
    duties={},
    result=(results.RepairedPartition, results.RepairedTopic),
)

UNDO_RUN = JobSpec(
    name="undo_run",
    summary="restores what a run removed; later runs of the same partitions are undone with it",
    title="Undo a run",
    intro="Restores the records that a run removed from a topic, while their files still exist. "
    "Later runs that removed records of the same partitions are undone with it: the plan "
    "lists them. Records ingested after the run are retained. For seven days, no job removes "
    "records from these partitions, so that you can change the setting that removed them.",
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
                "Id of the run that removed records, from lake.ebbtide.runs.",
                is_required=True,
                suggests=Suggestions.RUNS,
                schema={"minLength": 1},
            ),
            plan_only(_THEN),
        ),
    ),
    buttons=(plan_button("shows which records would be restored; nothing is changed."), ASK),
    moves_low_watermarks=True,
    on_adopted=OnAdopted.WORKS,
    why="while the table's snapshots exist",
    duties={
        **FREE_OF_ALL,
        Work.UNDO: Duty.RESUME,
        Work.APPEND: Duty.REFUSE,
        Work.REPLICATION: Duty.REFUSE,
    },
    result=(results.UndonePartition, results.UndoneTopic),
)
