"""Parameters: JSON as a Param, text as an option or as a field of a form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from ebbtide.errors import RequestError
from ebbtide.numbers import MAX_INT, MAX_LONG, whole_argument
from ebbtide.settings.upstream import WITHOUT_CREDENTIALS, check_uri
from ebbtide.specs.erase_request import Encoding
from ebbtide.specs.filled import Filled, offsets, partition_number

Schema = dict[str, Any]
# Names of fields: a setting's new value, the value it had when the form was shown, and its box.
VALUE, WAS, UNSET = "value.", "was.", "unset."
NEW_NAME, NEW_VALUE = "new_name", "new_value"  # of rows for settings that are not set yet


class Suggestions(StrEnum):
    """Lists that fields suggest; the last three are of the topic that is chosen."""

    TOPICS = "topics"
    TABLES = "tables"  # that are no topics
    CLUSTERS = "clusters"
    CONNECTIONS = "connections"
    AGES = "ages"
    PLANS = "plans"  # that can be executed
    PARTITIONS = "partitions"
    HOLDS = "holds"
    RUNS = "runs"  # that can be undone


def like(pattern: str, words: str) -> Schema:
    """Return the schema of a text that fits a pattern; what does not is refused in these words.

    Of `pattern` alone, Airflow would show the regular expression.
    """
    return {"if": {"not": {"pattern": pattern}}, "then": {"const": words}}


TOPIC = like(r"^[^.]+\..+$", "<cluster>.<topic>, such as log.orders")
LINE = like(r"^[^\r\n]+$", "one line of text that is not empty")


def unset_settings(filled: Filled, _: str = "") -> list[str] | None:
    """Return the settings whose boxes are checked."""
    return [name.removeprefix(UNSET) for name in filled.values if name.startswith(UNSET)] or None


def changed_settings(filled: Filled, _: str = "") -> list[str] | None:
    """Return settings with another value than the form has shown, and new ones, as NAME=VALUE."""
    changed = []
    for sent, values in filled.values.items():
        name = sent.removeprefix(VALUE)
        if name != sent and values[-1].strip() != (filled.text(f"{WAS}{name}") or ""):
            changed.append((name, values[-1].strip()))
    names, values = filled.values.get(NEW_NAME, ()), filled.values.get(NEW_VALUE, ())
    if len(names) != len(values):
        raise RequestError(
            "expected as many values as names of new settings, "
            f"found {len(values)} and {len(names)}"
        )
    for name, value in zip(names, values, strict=True):
        if name.strip():
            changed.append((name.strip(), value.strip()))
        elif value.strip():
            raise RequestError(f"expected a setting's name for {value.strip()!r}, found none")
    unset = unset_settings(filled) or ()
    return [f"{name}={value}" for name, value in changed if name not in unset] or None


class ParamKind(NamedTuple):
    """A kind of parameters: its field in the form, its JSON type, and the reader of the form.

    `schema` is more of its JSON schema, and `parse` reads the text of an option.
    """

    field: str  # the template has a macro for each; "" has none of its own
    json_type: str
    read: Callable[[Filled, str], Any]
    schema: Mapping[str, Any] = {}
    parse: Callable[[str], Any] = str
    is_secret: bool = False  # never shown again

    def __call__(self, name: str, label: str, help: str, **more: Any) -> JobParam:
        """Return a parameter of this kind."""
        choices = tuple(str(choice) for choice in more.pop("choices", ()))
        return JobParam(self, name, label, help, choices=choices, **more)

    @property
    def is_repeated(self) -> bool:
        """True if an option names each value."""
        return self.json_type == "array"


_WITHOUT_SECRET = like(WITHOUT_CREDENTIALS, "a path or URI without a user's name or password")
_TEXTS = {"items": {"type": "string"}}
_NUMBERS = {"items": {"type": "integer", "minimum": 0}}

TEXT = ParamKind("text", "string", Filled.text)
URI = ParamKind("text", "string", Filled.text, {"minLength": 1, **_WITHOUT_SECRET}, check_uri)
TIME = ParamKind("time", "string", Filled.time, {"format": "date-time"})
DAY = ParamKind("date", "string", Filled.text, {"format": "date"})
NUMBER = ParamKind("number", "integer", Filled.number, {"minimum": 0}, whole_argument(most=MAX_INT))
FLAG = ParamKind("check", "boolean", Filled.is_checked)
# The form has a button for it.
PLAN_ONLY = ParamKind("", "boolean", lambda filled, _: filled.text("go") not in ("ask", "start"))
CHOICE = ParamKind("choice", "string", Filled.text)
LINES = ParamKind("lines", "array", Filled.lines, _TEXTS)
KEYS = ParamKind("lines", "array", Filled.keys, _TEXTS, is_secret=True)
CHOICES = ParamKind("choices", "array", Filled.lines, _TEXTS)
# Any of what is suggested; of topics, new ones come by a second field.
SEVERAL = ParamKind("several", "array", Filled.lines, _TEXTS)
SEVERAL_AND_NEW = ParamKind(
    "several_and_new",
    "array",
    lambda filled, name: [*(filled.lines(name) or ()), *(filled.lines(f"new_{name}") or ())],
    _TEXTS,
)
PARTITIONS = ParamKind(
    "several",
    "array",
    lambda filled, name: [partition_number(text) for text in filled.lines(name) or ()],
    _NUMBERS,
    whole_argument(most=MAX_INT),
)
# Offsets have a field for each partition, and settings one for each that is set.
OFFSETS = ParamKind("offsets", "object", lambda filled, _: offsets(filled))
OFFSET_LINES = ParamKind(
    "offsets",
    "array",
    lambda filled, _: [f"{partition}:{offset}" for partition, offset in offsets(filled).items()],
    _TEXTS,
)
SETTINGS = ParamKind("settings", "array", changed_settings, _TEXTS)
UNSET_SETTINGS = ParamKind("", "array", unset_settings, _TEXTS)


@dataclass(frozen=True, slots=True)
class JobParam:
    """One value that a job or a DAG is given.

    A job's option is --<name> unless `option` says otherwise; with "" it has none of its own.
    `default_from` is a variable with the default. With `variable`, the driver gets the value by
    that and not by an option. If not `is_stored`, a plan lacks it: an execution is given it again.
    """

    kind: ParamKind
    name: str
    label: str
    help: str
    _: KW_ONLY
    default: Any = None
    default_from: str = ""
    is_required: bool = False
    option: str | None = None
    parse: Callable[[str], Any] | None = None  # in place of its kind's
    variable: str = ""
    is_stored: bool = True
    suggests: Suggestions | None = None
    choices: Sequence[str] = ()
    schema: Mapping[str, Any] = field(default_factory=dict)  # more than its kind's
    items: Mapping[str, Any] = field(default_factory=dict)  # the same of each item

    @property
    def flag(self) -> str:
        """The job's option; empty if it has none."""
        return f"--{self.name.replace('_', '-')}" if self.option is None else self.option

    @property
    def must_be_filled_in(self) -> bool:
        """True if an empty field means that nothing is given."""
        return self.is_required and self.default is None and not self.choices

    @property
    def first_value(self) -> Any:
        """The value of the Param before a person changes it."""
        value = self.default
        if self.default_from:
            value = os.environ.get(self.default_from, value) or None
        if value is None and self.kind.json_type == "boolean":
            return False
        if value is None and self.choices:
            return self.choices[0]
        if value is None and self.is_required:
            return [] if self.kind.is_repeated else ""
        return value

    @property
    def json_schema(self) -> Schema:
        """The JSON schema of the Param. It may be null if nothing stands for no value."""
        json_type, schema = self.kind.json_type, {**self.kind.schema, **self.schema}
        has_value = json_type == "boolean" or bool(self.choices) or self.is_required
        has_value |= json_type == "integer" and self.default is not None
        if self.choices and not self.kind.is_repeated:
            schema["enum"] = list(self.choices)
        if self.items:
            schema["items"] = {**schema["items"], **self.items}
        return {"type": json_type if has_value else ["null", json_type], **schema}

    def read(self, filled: Filled) -> Any:
        """Return the Param's value of what was filled in; None leaves it to the DAG's default."""
        value = self.kind.read(filled, self.name)
        if self.kind is CHOICES:  # in the order of the choices
            value = [choice for choice in self.choices if choice in (value or ())]
        if value or value in (False, 0):
            return value
        empty: Any = [] if self.kind.is_repeated else ""
        return empty if self.must_be_filled_in else None

    def on_command_line(self) -> dict[str, Any]:
        """Return the option as argparse takes it; a word about people has a variable too."""
        if self.kind.json_type == "boolean":
            return {"action": "store_true"}
        default = os.environ.get(self.variable) or None if self.variable else None
        given: dict[str, Any] = {"type": self.parse or self.kind.parse, "default": default}
        if self.choices:
            default = None if self.is_required else self.choices[0]
            given |= {"choices": self.choices, "default": default}
        elif self.kind.is_repeated:
            given |= {"action": "append", "default": []}
        elif self.kind is NUMBER:
            given["default"] = self.default
        return given

    def to_arguments(self, value: Any) -> list[str]:
        """Return the options for a Param's value; RequestError for a URI with credentials."""
        if value is None or isinstance(value, bool):
            return [self.flag] if value else []
        values = value if isinstance(value, list | tuple) else [value]
        return [text for one in values for text in (self.flag, check_uri(str(one)))]


def topic(help: str = "", label: str = "Topic", **more: Any) -> JobParam:
    """Return the one topic of a run, which has to be named."""
    return TEXT(
        "topic",
        label,
        help or "<cluster>.<topic>. The form lists the lake's topics.",
        schema=TOPIC,
        option="",
        **{"is_required": True, "suggests": Suggestions.TOPICS, **more},
    )


def topics(kind: ParamKind, empty: str, option: str = "") -> JobParam:
    """Return any number of topics; `empty` tells what none means."""
    return kind(
        "topics",
        "Topics",
        f"One <cluster>.<topic> per line. Empty: {empty}.",
        items=TOPIC,
        schema={"minItems": 1},
        suggests=Suggestions.TOPICS,
        option=option,
    )


def now(meaning: str) -> JobParam:
    """Return the run's `now`; `meaning` says what time that is."""
    help = f"{meaning}. Empty: the time at which the run was due."
    return TIME("now", "Now (UTC)", help, option="")


def plan_only(help: str, *, default: bool = False, option: str = "") -> JobParam:
    """Return the choice to end after the plan."""
    return PLAN_ONLY("plan_only", "Plan only", help, default=default, option=option)


def columns(*parts: str) -> tuple[JobParam, ...]:
    """Return the columns of a table that are parts of a record, and what marks a tombstone."""
    help = "Name of the column. Empty: it is recognised."
    return (
        *(TEXT(f"{part}_column", f"Column of the {part}", help) for part in parts),
        TEXT(
            "tombstone",
            "Tombstone",
            "Rows with this COLUMN=VALUE are tombstones. Empty: rows with a null value.",
            schema=like("^[^=]+=.*$", "COLUMN=VALUE, such as deleted=true"),
        ),
    )


def offset_range(partition: str) -> tuple[JobParam, ...]:
    """Return a range of offsets and its partition."""
    to_offset = whole_argument(most=MAX_LONG)
    return (
        NUMBER("partition", "Partition", partition, suggests=Suggestions.PARTITIONS),
        NUMBER("first_offset", "From offset", "Inclusive.", parse=to_offset),
        NUMBER("end_offset", "Before offset", "Exclusive.", schema={"minimum": 1}, parse=to_offset),
    )


def keys(variable: str, most: str, *, is_stored: bool) -> tuple[JobParam, ...]:
    """Return keys, which are typed in or in a file of at most so many, and how they are written."""
    return (
        KEYS(
            "keys",
            "Keys",
            "One key per line. Airflow stores them in clear with the run: everyone who can see "
            "the run can read them. To keep them out of Airflow, use a file.",
            items=LINE,
            option="",
            variable=variable,
            is_stored=is_stored,
        ),
        TEXT(
            "keys_file",
            "Or: a file of keys",
            f"A path or URI of a text file that Spark reads: one key per line, up to {most}.",
            schema={"minLength": 1},
            is_stored=is_stored,
        ),
        CHOICE(
            "encoding",
            "Keys are written as",
            "Encoding of the keys.",
            choices=Encoding,
        ),
    )
