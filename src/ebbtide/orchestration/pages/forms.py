"""The forms: their list, the values of their pages, and checks against the lake's state."""

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
    """A section in the list of forms."""

    title: str
    text: str
    names: Sequence[str]

    @property
    def forms(self) -> list[FormSpec]:
        """The section's forms, in the order of the list."""
        return [FORMS[name] for name in self.names]


SECTIONS: Sequence[FormSection] = (
    FormSection(
        "Remove, hold, undo, repair",
        "Each job plans first and shows its plan. No record is removed before a user approves the "
        "plan.",
        (
            *("delete_records", "apply_retention", "configure_topic", "erase_keys", "hold_records"),
            *("undo_run", "mark_tombstones", "repair_state", "approve_plan"),
        ),
    ),
    FormSection(
        "Ingest, retain, replicate, export",
        "These jobs start immediately, without an approval.",
        (
            *("ingest_topic", "ingest_segments", "ingest_table"),
            *("nightly_retention", "replicate_log", "export_segments"),
        ),
    ),
    FormSection(
        "Adopted tables",
        "Another tool writes these tables. Both jobs can show a plan first.",
        ("adopt_table", "abandon_table"),
    ),
)


class Suggested(NamedTuple):
    """A suggested value, and a note that explains it."""

    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A partition's field: the value filled in, and the log's start and end offsets."""

    partition: int
    value: str
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting's field, with its current value (`was`) and its default."""

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
    """The values of a form's page."""

    form: FormSpec
    filled: Filled
    topic: LakeTopic | None  # the chosen topic, if the form needs one
    about: LakeTopic | None  # the topic that is filled in, even if the form does not need it
    suggestions: Mapping[Suggestions, Sequence[Suggested]]
    why_not: str | None = None  # why the user cannot send the form
    problem: str | None = None  # the error of a form that was sent
    is_paused: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)  # the DAG's own, by Param

    @property
    def needs_topic(self) -> bool:
        """True if the user must choose a topic first."""
        return self.form.needs_topic and self.topic is None

    @property
    def limit(self) -> str | None:
        """A note if the topic is adopted and the DAG refuses it or cannot know its current end."""
        if self.about is None or not self.about.is_adopted:
            return None
        name = self.about.name
        if refuses(self.about, self.form.name):
            return f"{self.form.name} does not work on {name}, because it is an adopted table."
        if self.form.name == DELETE_RECORDS:
            return (
                f"{name} is an adopted table: the job reads its current end when it runs. The log "
                "start and end below are from the last job on it."
            )
        return None

    @property
    def has_known_end(self) -> bool:
        """True if no offset can be above the log end that the page shows."""
        return self.topic is not None and not self.topic.is_adopted

    @property
    def sections(self) -> list[Section]:
        """The sections and fields to show. A topic that the form needs is chosen before them."""
        chosen = {"topic"} if self.form.needs_topic else set()
        return [
            section._replace(params=[param for param in section.params if param.name not in chosen])
            for section in self.form.sections
        ]

    def value(self, param: JobParam) -> str:
        """Return the text filled into a field, or its default. A secret field is always empty."""
        if param.kind.is_secret:
            return ""
        given = self.filled.values.get(param.name)
        if given is None and param.kind.field == "lines":
            given = param.default
        return "\n".join(given or ())

    def suggested(self, param: JobParam) -> Sequence[Suggested]:
        """Return a field's suggestions, followed by values filled in that are not suggested."""
        listed = self.suggestions.get(param.suggests, ()) if param.suggests else ()
        known = {suggested.value for suggested in listed}
        given = self.filled.lines(param.name) or ()
        return [*listed, *(Suggested(value) for value in given if value not in known)]

    @property
    def lists(self) -> Mapping[str, Sequence[Suggested]]:
        """The suggestion lists of the one-line fields, by name."""
        one_line = [param for param in self.form.params if param.kind.field in ("text", "number")]
        named = {param.suggests for param in one_line}
        lists = {str(name): listed for name, listed in self.suggestions.items() if name in named}
        if any(param.kind.field == "settings" for param in self.form.params):
            lists["settings"] = [Suggested(name) for name in setting_names()]
        return lists

    def is_chosen(self, param: JobParam, choice: str) -> bool:
        """Return whether a field's choice is chosen."""
        given = self.filled.values.get(param.name, param.first_value)
        return choice in given if isinstance(given, list) else choice == given

    @property
    def offsets(self) -> list[OffsetRow]:
        """The topic's first partitions. The URL's `partition` gets the URL's `offset`."""
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
        """The number of partitions without a field."""
        return 0 if self.topic is None else max(len(self.topic.partitions) - PARTITIONS_SHOWN, 0)

    @property
    def settings(self) -> list[SettingField]:
        """The settings that are set on the topic."""
        if self.topic is None:
            return []
        return [
            _setting_row(name, self.topic.properties[name], self.filled)
            for name in setting_names()
            if name in self.topic.properties
        ]

    @property
    def new_settings(self) -> list[NewSetting]:
        """Rows for settings that are not set. The first has the setting that the URL names."""
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
    """Return a form's page. Raise UnknownTopicError if the form needs a topic that is missing."""
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
    """Return the topic that is filled in, or None if it cannot be read."""
    try:
        return lake.topic(name) if name else None
    except EbbtideError:  # the run reports the error
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
    """Return the suggestion lists in `asked`. A topic's lists are empty until one is chosen.

    A list that cannot be read is empty too: the form works without it.
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
    """Raise EbbtideError for wrong Params. `defaults` are the DAG's own, by Param."""
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
        raise RequestError(
            "expected either keys or a file of keys, found both or neither. Fill in one"
        )
    decode_keys(params.get("keys") or (), Encoding(params.get("encoding") or "utf-8"))


def _check_cluster(params: Mapping[str, Any], cluster: str | None) -> None:
    names = [TopicName.parse(text) for text in params.get("topics") or ()]
    others = [str(name) for name in names if cluster and name.cluster != cluster]
    if others:
        raise RequestError(
            f"expected topics of cluster {cluster}, found {', '.join(others)}. Change the cluster "
            "or the topics"
        )
    if internal := [str(name) for name in names if name.topic in INTERNAL_TOPICS]:
        raise RequestError(
            f"expected none of Kafka's own topics, found {', '.join(internal)}. Leave them out"
        )


def _check_source(lake: Lake, params: Mapping[str, Any]) -> None:
    names = [str(TopicName.parse(text)) for text in params.get("topics") or ()]
    source = params.get("source")
    if source is None:
        check_known(lake, names)
        return
    if len(names) != 1:
        raise RequestError(
            f"expected one topic for the rows of {source}, found {len(names) or 'none'}"
        )
    if TopicName.parse(source) and ":" not in source:  # only Spark opens another catalog
        lake.records(source)


def _check_enabled(lake: Lake, names: Sequence[str]) -> None:
    check_known(lake, [str(TopicName.parse(name)) for name in names])
    disabled = [name for name in names if not lake.topic(name).config.is_enabled]
    if disabled:
        raise RequestError(
            f"expected enabled topics, found {', '.join(disabled)} with ebbtide.enabled=false: a "
            "run skips them. Set it to true with configure_topic"
        )
