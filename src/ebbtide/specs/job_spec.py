"""What both sides know of a job or a form: its texts, its parameters, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from ebbtide.ledger.results import OfPartition, OfTopic
from ebbtide.specs.filled import Filled
from ebbtide.specs.params import JobParam, Suggestions

Values = Mapping[str, Any]


class Purpose(StrEnum):
    """What a DAG is for: its second tag, by which Airflow's list of DAGs can be filtered."""

    INGEST = "ingest"
    RETENTION = "retention"
    REMOVE = "remove"
    RECOVER = "hold and recover"
    SETTINGS = "settings"
    APPROVAL = "approval"
    EXAMPLE = "example"


class Frame(Enum):
    """How a run goes about its job."""

    STAGE = "a stage of other DAGs, without one of its own"
    DIRECT = "it starts at once"
    GROUPED = "it starts at once, for a group of topics a Spark application"
    ASKING = "it plans, asks somebody, and executes the plan"


class OnAdopted(StrEnum):
    """What a job does on an adopted topic, whose table another tool writes."""

    WORKS = "works"
    PASSES_BY = "passes by"  # a job of the night: it says so in its row
    REFUSES = "refuses"


class Work(StrEnum):
    """The kinds of work that take more than one commit and change what others read."""

    ROUND = "cleaner round"
    MERGE = "merge of segments"
    INGEST = "ingest of segment files"
    APPEND = "append of tombstones"
    SLICE = "slice of a live topic"
    COPY = "slice of a copied table"
    REPLICATION = "replication to this topic"
    UNDO = "undo of a run"


class Duty(StrEnum):
    """A job's duty towards work that it finds in flight."""

    FINISH = "finishes it first"
    RESUME = "goes on with it: it is its own kind of work"
    REFUSE = "refuses to begin, and says what to do"
    LEAVE = "works beside it"


FREE_OF_ALL = {Work.ROUND: Duty.FINISH, Work.MERGE: Duty.FINISH, Work.UNDO: Duty.FINISH}
OF_SOURCES = (Work.INGEST, Work.APPEND, Work.SLICE, Work.COPY, Work.REPLICATION)


def only_work(own: Work) -> dict[Work, Duty]:
    """Return the duties of a job that brings records in: it resumes its own work alone."""
    return {**dict.fromkeys(OF_SOURCES, Duty.REFUSE), own: Duty.RESUME}


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A way to send a form; its name is that of the choice `go`."""

    name: str
    label: str
    help: str


def plan_button(help: str) -> Button:
    """Return the button that ends a run after its plan."""
    return Button(name="plan", label="Plan only", help=help)


def ask_button(help: str, label: str = "Plan, then ask for approval") -> Button:
    """Return the button that goes on after the plan."""
    return Button(name="ask", label=label, help=help)


PLAN = plan_button("shows what would go and keeps it as a plan; nothing is changed.")
ASK = ask_button("does the same, then waits until somebody approves the plan, and executes it.")
START = Button(name="start", label="Start", help="starts a run at once; nobody is asked.")


class Section(NamedTuple):
    """Parameters that belong together; one that is not open has to be unfolded."""

    legend: str
    params: Sequence[JobParam]
    help: str
    is_open: bool


def section(legend: str, *params: JobParam, help: str = "", is_open: bool = True) -> Section:
    """Return a section."""
    return Section(legend, params, help, is_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSpec:
    """A DAG that people start by a form, and its parameters.

    With `needs_topic` the form is shown once a topic is chosen, since its fields depend on it.
    `schedule` is a variable with a cron expression.
    """

    name: str
    title: str
    intro: str
    purpose: Purpose
    frame: Frame
    sections: Sequence[Section] = ()
    buttons: Sequence[Button] = (PLAN, ASK)
    checks: Sequence[Callable[[Values], object]] = ()  # each raises RequestError
    needs_topic: bool = False
    schedule: str = ""

    @property
    def params(self) -> list[JobParam]:
        """All parameters, in order."""
        return [param for section in self.sections for param in section.params]

    @property
    def suggested(self) -> set[Suggestions]:
        """The lists that its fields suggest."""
        return {param.suggests for param in self.params if param.suggests is not None}

    def read(self, filled: Filled) -> dict[str, Any]:
        """Return the DAG's Params of what was filled in; its own defaults hold for all others.

        RequestError says what is wrong before a run does.
        """
        read = {param.name: param.read(filled) for param in self.params}
        shown = {
            param.name
            for param in self.params
            if param.kind.is_repeated and param.default and not param.choices
        }
        values = {name: v for name, v in read.items() if v is not None or name in shown}
        for check in self.checks:
            check(values)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(FormSpec):
    """A job.

    `summary` is its --help. `request` makes of the Params what the driver gets as a file, in place
    of options. Without `needs_state` it works on a topic whose state is lost, or that is none yet.
    `options` are on its command line alone.
    """

    title: str = ""
    intro: str = ""
    purpose: Purpose = Purpose.RETENTION
    frame: Frame = Frame.STAGE
    summary: str
    is_planned: bool = True  # its plans are kept
    options: Sequence[JobParam] = ()
    request: Callable[[Values], dict[str, Any]] | None = None
    needs_state: bool = True
    needs_connections: bool = False  # of its topics
    is_ingest: bool = False
    is_hold: bool = False
    moves_low_watermarks: bool = False
    execution_pool: str = ""  # where another than that of Spark
    on_adopted: OnAdopted
    why: str  # it does so, or how
    duties: Mapping[Work, Duty] | None  # a kind that is missing: it leaves it; None: it needs none
    result: tuple[type, type] = (OfPartition, OfTopic)  # the types of a partition and of a topic

    @property
    def asked(self) -> list[JobParam]:
        """What an Airflow task hands on of its Params, if there is no request."""
        return [] if self.request else self.params

    @property
    def works_on_adopted(self) -> bool:
        """Whether it works on adopted topics."""
        return self.on_adopted is OnAdopted.WORKS
