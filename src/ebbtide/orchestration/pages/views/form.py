"""A form as its page shows it: fields with what is filled in, and what is suggested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.orchestration.pages.forms.configure_topic import (
    NEW_NAME,
    NEW_VALUE,
    UNSET,
    VALUE,
    WAS,
)
from ebbtide.orchestration.pages.forms.form import (
    OFFSET,
    Field,
    Filled,
    Form,
    Kind,
    Suggested,
    Suggestions,
)
from ebbtide.orchestration.pages.views.adopted import refuses
from ebbtide.orchestration.pages.views.suggestions import suggestions_of
from ebbtide.orchestration.pages.views.topic.settings import default_of, setting_names

PARTITIONS_SHOWN = 50
NEW_SETTINGS = 3
DELETE_RECORDS = "delete_records"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A partition's field: what is filled in, and between which offsets its log lies."""

    partition: int
    name: str
    value: str
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting's field, the value that it has now, and its default."""

    name: str
    value: str
    was: str
    default: str
    is_unset: bool
    value_name: str
    was_name: str
    unset_name: str


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

    form: Form
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
        if refuses(self.about, self.form.dag):
            return f"{self.form.dag} does not work on {name}: others write its table."
        if self.form.dag == DELETE_RECORDS:
            return (
                f"Others write the table of {name}: the run looks up the end that the table has "
                "then. Log start and end below are as the last night found them."
            )
        return None

    @property
    def has_known_end(self) -> bool:
        """Whether no offset lies beyond the log end that is shown."""
        return self.topic is not None and not self.topic.is_adopted

    def value(self, of: Field) -> str:
        """Return a field's text: what was filled in, else its default; nothing of a secret one."""
        if of.is_secret:
            return ""
        given = self.filled.values.get(of.name)
        if given is not None:
            return "\n".join(given)
        return of.default if isinstance(of.default, str) else ""

    def suggested(self, of: Field) -> Sequence[Suggested]:
        """Return what a field suggests, and what was filled in besides."""
        listed = self.suggestions.get(of.suggests, ()) if of.suggests else ()
        known = {suggested.value for suggested in listed}
        given = self.filled.lines(of.name) or ()
        return [*listed, *(Suggested(value) for value in given if value not in known)]

    @property
    def lists(self) -> Mapping[str, Sequence[Suggested]]:
        """The lists that fields of one line refer to, by name."""
        named = {of.suggests for of in self.form.fields if of.kind in (Kind.TEXT, Kind.NUMBER)}
        if self.form.needs_topic:
            named.add(Suggestions.TOPICS)
        lists = {str(name): of for name, of in self.suggestions.items() if name in named}
        if any(of.kind is Kind.SETTINGS for of in self.form.fields):
            lists["settings"] = [Suggested(name) for name in setting_names()]
        return lists

    def is_chosen(self, of: Field, choice: str) -> bool:
        """Return whether one of a field's choices is chosen."""
        given = self.filled.values.get(of.name)
        return choice in (of.default if given is None else given)

    @property
    def offsets(self) -> list[OffsetRow]:
        """The first partitions of the topic; what was given with `partition` is filled in."""
        if self.topic is None:
            return []
        partition, offset = self.filled.text("partition"), self.filled.text("offset")
        return [
            OffsetRow(
                partition=number,
                name=f"{OFFSET}{number}",
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
    def settings(self) -> list[SettingRow]:
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
    lake: Lake, form: Form, filled: Filled, connections: Sequence[str], **given: Any
) -> FormPage:
    """Return the page of a form; UnknownTopicError where the topic that it needs is not there."""
    name = filled.text("topic")
    topic = lake.topic(name) if form.needs_topic and name else None
    about = topic or _readable(lake, name)
    suggestions = suggestions_of(lake, form.suggested, about)
    if Suggestions.CONNECTIONS in form.suggested:
        suggestions[Suggestions.CONNECTIONS] = [Suggested(of) for of in connections]
    return FormPage(
        form=form, filled=filled, topic=topic, about=about, suggestions=suggestions, **given
    )


def _readable(lake: Lake, name: str | None) -> LakeTopic | None:
    """Return the topic that a form is filled in for; None where it cannot be read."""
    try:
        return lake.topic(name) if name else None
    except EbbtideError:  # the run says what is wrong
        return None


def _setting_row(name: str, was: str, filled: Filled) -> SettingRow:
    given = filled.text(f"{VALUE}{name}")
    if given is None and filled.text("name") == name:
        given = filled.text("value")
    return SettingRow(
        name=name,
        value=was if given is None else given,
        was=was,
        default=default_of(name),
        is_unset=filled.is_checked(f"{UNSET}{name}"),
        value_name=f"{VALUE}{name}",
        was_name=f"{WAS}{name}",
        unset_name=f"{UNSET}{name}",
    )
