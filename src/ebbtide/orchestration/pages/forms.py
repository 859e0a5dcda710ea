"""The forms: in sections of their list, as their pages show them, and checked by the lake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ebbtide.errors import EbbtideError, RequestError
from ebbtide.lake.own_tables import open_plans, read_holds, undoable_runs
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.driver import check_form, check_known, check_request
from ebbtide.orchestration.job_chains import find_waiting
from ebbtide.orchestration.pages.topic import default_of, refuses, setting_names
from ebbtide.settings.names import INTERNAL_TOPICS, TopicName
from ebbtide.specs.all_specs import FORMS
from ebbtide.specs.by_hand import delete_request
from ebbtide.specs.erase_request import Encoding, decode_keys
from ebbtide.specs.filled import OFFSET, Filled
from ebbtide.specs.job_spec import FormSpec, Section
from ebbtide.specs.params import NEW_NAME, NEW_VALUE, UNSET, VALUE, JobParam, Suggestions
from ebbtide.specs.settings_changes import parse_changes
from ebbtide.state.rebuilding import parse_asked

PARTITIONS_SHOWN = 50
NEW_SETTINGS = 3
AGES = ("P1D", "P7D", "P30D", "P90D", "P365D")
DELETE_RECORDS = "delete_records"


class FormSection(NamedTuple):
    """Forms that have something in common, which its text says."""

    title: str
    text: str
    names: Sequence[str]

    @property
    def forms(self) -> list[FormSpec]:
        """Its forms, in the order of the list."""
        return [FORMS[name] for name in self.names]


SECTIONS: Sequence[FormSection] = (
    FormSection(
        "Remove, hold, bring back, repair",
        "Each plans first and shows what would go. Nothing is removed before somebody has approved "
        "the plan.",
        (
            *("delete_records", "apply_retention", "configure_topic", "erase_keys", "hold_records"),
            *("undo_run", "mark_tombstones", "repair_state", "approve_plan"),
        ),
    ),
    FormSection(
        "Bring in, keep up, copy out",
        "These start at once and ask nobody.",
        (
            *("ingest_topic", "ingest_segments", "ingest_table"),
            *("nightly_retention", "replicate_log", "export_segments"),
        ),
    ),
    FormSection(
        "Tables that others write",
        "Each can show first what it would change.",
        ("adopt_table", "abandon_table"),
    ),
)


class Suggested(NamedTuple):
    """One thing to choose, and what is said beside it."""

    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A partition's field: what is filled in, and between which offsets its log lies."""

    partition: int
    value: str
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting's field, the value that it has now, and its default."""

    name: str
    value: str
    was: str
    default: str
    is_unset: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSetting:
    """A row for a setting that is not set yet."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPage:
    """A form: who may send it, what it suggests, and the topic that it is about, if it is chosen.

    `why_not` says why the user cannot send it, `problem` what was wrong with what was sent.
    `defaults` are the DAG's own, by Param: what an empty field stands for.
    """

    form: FormSpec
    filled: Filled
    topic: LakeTopic | None
    about: LakeTopic | None  # the topic that is filled in, also where the form does not need it
    suggestions: Mapping[Suggestions, Sequence[Suggested]]
    why_not: str | None = None
    problem: str | None = None
    is_paused: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_topic(self) -> bool:
        """Whether a topic has to be chosen first."""
        return self.form.needs_topic and self.topic is None

    @property
    def limit(self) -> str | None:
        """What the DAG cannot do for the topic, since others write its table."""
        if self.about is None or not self.about.is_adopted:
            return None
        name = self.about.name
        if refuses(self.about, self.form.name):
            return f"{self.form.name} does not work on {name}: others write its table."
        if self.form.name == DELETE_RECORDS:
            return (
                f"Others write the table of {name}: the run looks up the end that the table has "
                "then. Log start and end below are as the last night found them."
            )
        return None

    @property
    def has_known_end(self) -> bool:
        """Whether no offset lies beyond the log end that is shown."""
        return self.topic is not None and not self.topic.is_adopted

    @property
    def sections(self) -> list[Section]:
        """The sections with the fields that are shown; the topic is chosen before, if need be."""
        chosen = {"topic"} if self.form.needs_topic else set()
        return [
            section._replace(params=[param for param in section.params if param.name not in chosen])
            for section in self.form.sections
        ]

    def value(self, param: JobParam) -> str:
        """Return a field's text: what was filled in, else its default; nothing of a secret one."""
        if param.kind.is_secret:
            return ""
        given = self.filled.values.get(param.name)
        if given is None and param.kind.field == "lines":
            given = param.default
        return "\n".join(given or ())

    def suggested(self, param: JobParam) -> Sequence[Suggested]:
        """Return what a field suggests, and what was filled in besides."""
        listed = self.suggestions.get(param.suggests, ()) if param.suggests else ()
        known = {suggested.value for suggested in listed}
        given = self.filled.lines(param.name) or ()
        return [*listed, *(Suggested(value) for value in given if value not in known)]

    @property
    def lists(self) -> Mapping[str, Sequence[Suggested]]:
        """The lists that fields of one line refer to, by name."""
        one_line = [param for param in self.form.params if param.kind.field in ("text", "number")]
        named = {param.suggests for param in one_line}
        lists = {str(name): listed for name, listed in self.suggestions.items() if name in named}
        if any(param.kind.field == "settings" for param in self.form.params):
            lists["settings"] = [Suggested(name) for name in setting_names()]
        return lists

    def is_chosen(self, param: JobParam, choice: str) -> bool:
        """Return whether one of a field's choices is chosen."""
        given = self.filled.values.get(param.name, param.first_value)
        return choice in given if isinstance(given, list) else choice == given

    @property
    def offsets(self) -> list[OffsetRow]:
        """The first partitions of the topic; what was given with `partition` is filled in."""
        if self.topic is None:
            return []
        partition, offset = self.filled.text("partition"), self.filled.text("offset")
        return [
            OffsetRow(
                partition=number,
                value=self.filled.text(f"{OFFSET}{number}")
                or (offset or "" if partition == str(number) else ""),
                log_start_offset=state.log_start_offset,
                log_end_offset=state.log_end_offset,
            )
            for number, state in list(self.topic.partitions.items())[:PARTITIONS_SHOWN]
        ]

    @property
    def more_partitions(self) -> int:
        """How many partitions have no field of their own."""
        return 0 if self.topic is None else max(len(self.topic.partitions) - PARTITIONS_SHOWN, 0)

    @property
    def settings(self) -> list[SettingField]:
        """The settings that the topic has."""
        if self.topic is None:
            return []
        return [
            _setting_row(name, self.topic.properties[name], self.filled)
            for name in setting_names()
            if name in self.topic.properties
        ]

    @property
    def new_settings(self) -> list[NewSetting]:
        """Rows for settings that are not set; one that the address names comes first."""
        names = list(self.filled.values.get(NEW_NAME, ()))
        values = list(self.filled.values.get(NEW_VALUE, ()))
        is_set = self.topic is not None and self.filled.text("name") in self.topic.properties
        if not names and not is_set:
            names, values = [self.filled.text("name") or ""], [self.filled.text("value") or ""]
        rows = [NewSetting(name=n, value=v) for n, v in zip(names, values, strict=False)]
        return rows + [NewSetting(name="", value="")] * max(NEW_SETTINGS - len(rows), 0)


def form_page(
    lake: Lake, form: FormSpec, filled: Filled, connections: Sequence[str], **given: Any
) -> FormPage:
    """Return the page of a form; UnknownTopicError where the topic that it needs is not there."""
    name = filled.text("topic")
    topic = lake.topic(name) if form.needs_topic and name else None
    about = topic or _readable(lake, name)
    suggestions = suggestions_of(lake, form.suggested, about)
    if Suggestions.CONNECTIONS in form.suggested:
        suggestions[Suggestions.CONNECTIONS] = [Suggested(connection) for connection in connections]
    return FormPage(
        form=form, filled=filled, topic=topic, about=about, suggestions=suggestions, **given
    )


def _readable(lake: Lake, name: str | None) -> LakeTopic | None:
    """Return the topic that a form is filled in for; None where it cannot be read."""
    try:
        return lake.topic(name) if name else None
    except EbbtideError:  # the run says what is wrong
        return None


def _setting_row(name: str, was: str, filled: Filled) -> SettingField:
    given = filled.text(f"{VALUE}{name}")
    if given is None and filled.text("name") == name:
        given = filled.text("value")
    return SettingField(
        name=name,
        value=was if given is None else given,
        was=was,
        default=default_of(name),
        is_unset=filled.is_checked(f"{UNSET}{name}"),
    )


def suggestions_of(
    lake: Lake, asked: Collection[Suggestions], topic: LakeTopic | None
) -> dict[Suggestions, list[Suggested]]:
    """Return the lists that are asked for; those of a topic are empty while none is chosen.

    A list that cannot be read is empty: the form can be filled in without it.
    """
    lists: dict[Suggestions, list[Suggested]] = {}
    for name in asked:
        try:
            if name in _OF_LAKE:
                lists[name] = _OF_LAKE[name](lake)
            elif name in _OF_TOPIC:
                lists[name] = [] if topic is None else _OF_TOPIC[name](lake, topic)
        except EbbtideError:
            lists[name] = []
    return lists


def _topics(lake: Lake) -> list[Suggested]:
    return [Suggested(name) for name in lake.topic_names()]


def _tables(lake: Lake) -> list[Suggested]:
    return [Suggested(name) for name in lake.other_tables()]


def _clusters(lake: Lake) -> list[Suggested]:
    clusters = {TopicName.parse(name).cluster for name in lake.topic_names()}
    return [Suggested(cluster) for cluster in sorted(clusters)]


def _plans(lake: Lake) -> list[Suggested]:
    return [
        Suggested(plan.plan_id, f"{plan.job} on {plan.topic}, {plan.made_at:%Y-%m-%d %H:%M}")
        for plan in open_plans(lake, datetime.now(UTC), HISTORY)
    ]


def _partitions(_lake: Lake, topic: LakeTopic) -> list[Suggested]:
    return [
        Suggested(str(number), f"offsets {state.log_start_offset:,} to {state.log_end_offset:,}")
        for number, state in topic.partitions.items()
    ]


def _holds(lake: Lake, topic: LakeTopic) -> list[Suggested]:
    holds = [standing.hold for standing in read_holds(lake, datetime.now(UTC), topic.name)]
    return [Suggested(h.hold_id, f"{h.case_id or 'a pause'}: {h.covers}") for h in holds]


def _runs(lake: Lake, topic: LakeTopic) -> list[Suggested]:
    return [
        Suggested(run.run_id, f"{', '.join(run.jobs)}, until {run.until:%Y-%m-%d %H:%M}")
        for run in undoable_runs(lake, topic.name, datetime.now(UTC))
    ]


_OF_LAKE: Mapping[Suggestions, Callable[[Lake], list[Suggested]]] = {
    Suggestions.TOPICS: _topics,
    Suggestions.TABLES: _tables,
    Suggestions.CLUSTERS: _clusters,
    Suggestions.AGES: lambda _: [Suggested(age) for age in AGES],
    Suggestions.PLANS: _plans,
}
_OF_TOPIC: Mapping[Suggestions, Callable[[Lake, LakeTopic], list[Suggested]]] = {
    Suggestions.PARTITIONS: _partitions,
    Suggestions.HOLDS: _holds,
    Suggestions.RUNS: _runs,
}


def check_params(
    lake: Lake, dag: str, params: Mapping[str, Any], defaults: Mapping[str, str]
) -> None:
    """Raise EbbtideError for Params that cannot be; `defaults` are the DAG's own, by Param."""
    if "topic" in params:
        _check_topic(lake, dag, params)
    elif dag in ("ingest_topic", "ingest_segments"):
        _check_cluster(params, params.get("cluster") or defaults.get("cluster"))
    elif dag == "ingest_table":
        _check_source(lake, params)
    elif dag == "approve_plan":
        find_waiting(lake, params["plans"])
    else:
        _check_enabled(lake, params.get("topics") or ())


def _check_topic(lake: Lake, dag: str, params: Mapping[str, Any]) -> None:
    name = str(TopicName.parse(params["topic"]))
    if dag == DELETE_RECORDS:
        request = delete_request({**params, "topic": name})
        check_request(lake, request, clock=datetime.now(UTC), takes_part=False)
    if dag == "adopt_table":
        parse_changes(params.get("set") or (), ())
    if dag == "erase_keys":
        _check_keys(params)
    if dag == "repair_state":
        for param in ("log_start_offset", "max_event_time_ms"):
            parse_asked(param, params.get(param) or ())
    check_form(lake, dag, [name], params)


def _check_keys(params: Mapping[str, Any]) -> None:
    if bool(params.get("keys")) is bool(params.get("keys_file")):
        raise RequestError("expected keys, or a file of keys, found both or none")
    decode_keys(params.get("keys") or (), Encoding(params.get("encoding") or "utf-8"))


def _check_cluster(params: Mapping[str, Any], cluster: str | None) -> None:
    names = [TopicName.parse(text) for text in params.get("topics") or ()]
    others = [str(name) for name in names if cluster and name.cluster != cluster]
    if others:
        raise RequestError(
            f"expected topics of cluster {cluster}, found {', '.join(others)}: change the cluster, "
            "or the topics"
        )
    if internal := [str(name) for name in names if name.topic in INTERNAL_TOPICS]:
        raise RequestError(f"expected none of Kafka's own topics, found {', '.join(internal)}")


def _check_source(lake: Lake, params: Mapping[str, Any]) -> None:
    names = [str(TopicName.parse(text)) for text in params.get("topics") or ()]
    source = params.get("source")
    if source is None:
        check_known(lake, names)
        return
    if len(names) != 1:
        raise RequestError(
            f"expected one topic that gets the rows of {source}, found {len(names) or 'none'}"
        )
    if TopicName.parse(source) and ":" not in source:  # another catalog is Spark's to open
        lake.records(source)


def _check_enabled(lake: Lake, names: Sequence[str]) -> None:
    check_known(lake, [str(TopicName.parse(name)) for name in names])
    disabled = [name for name in names if not lake.topic(name).config.is_enabled]
    if disabled:
        raise RequestError(
            f"expected topics that are enabled, found {', '.join(disabled)} with "
            "ebbtide.enabled=false, which a run leaves out; set it to true with configure_topic"
        )
