"""The declaration of a job or a form for Airflow and Spark: texts, parameters, how it runs."""

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
    """The purpose of a DAG: its second tag, a filter in Airflow's list of DAGs."""

    INGEST = "ingest"
    RETENTION = "retention"
    REMOVE = "remove"
    RECOVER = "hold and recover"
    SETTINGS = "settings"
    APPROVAL = "approval"
    EXAMPLE = "example"


class Frame(Enum):
    """The course of a run."""

    STAGE = "a stage of other DAGs, without one of its own"
    DIRECT = "it starts immediately"
    GROUPED = "it starts immediately, one Spark application per group of topics"
    ASKING = "it plans, asks for approval, and executes the plan"


class OnAdopted(StrEnum):
    """A job's behaviour on an adopted topic."""

    WORKS = "works"
    DOES_NOTHING = "does nothing"  # a job of the night: its row says so
    REFUSES = "refuses"


class Work(StrEnum):
    """The kinds of work that take several commits."""

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
    RESUME = "resumes it: it is the job's own kind of work"
    REFUSE = "refuses to begin, and names the way out"
    LEAVE = "works next to it"


FREE_OF_ALL = {Work.ROUND: Duty.FINISH, Work.MERGE: Duty.FINISH, Work.UNDO: Duty.FINISH}
OF_SOURCES = (Work.INGEST, Work.APPEND, Work.SLICE, Work.COPY, Work.REPLICATION)


def only_work(own: Work) -> dict[Work, Duty]:
    """Return the duties of an ingest: it resumes its own work and refuses to begin during any
    other.
    """
    return {**dict.fromkeys(OF_SOURCES, Duty.REFUSE), own: Duty.RESUME}


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button that submits a form; its name is the value of the field `go`."""

    name: str
    label: str
    help: str


def plan_button(help: str) -> Button:
    """Return the button for a run that ends after its plan."""
    return Button(name="plan", label="Plan only", help=help)


def ask_button(help: str, label: str = "Plan, then ask for approval") -> Button:
    """Return the button for a run that goes on after its plan."""
    return Button(name="ask", label=label, help=help)


PLAN = plan_button("shows what would be removed and stores the plan; nothing is changed.")
ASK = ask_button("makes the plan, waits for its approval and executes it.")
START = Button(name="start", label="Start", help="starts a run immediately, without an approval.")


class Section(NamedTuple):
    """Parameters that belong together. If not `is_open`, the form shows them folded."""

    legend: str
    params: Sequence[JobParam]
    help: str
    is_open: bool


def section(legend: str, *params: JobParam, help: str = "", is_open: bool = True) -> Section:
    """Return a section."""
    return Section(legend, params, help, is_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSpec:
    """A DAG that people start with a form, and its parameters.

    With `needs_topic`, the form asks for a topic first, because its fields depend on the topic.
    `schedule` is the variable that holds a cron expression.
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
        """The lists that the form's fields suggest."""
        return {param.suggests for param in self.params if param.suggests is not None}

    def read(self, filled: Filled) -> dict[str, Any]:
        """Return the DAG's Params for the filled-in fields; the DAG's defaults apply to the rest.

        Raise RequestError if a value is wrong.
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

    `summary` is its --help. `request` turns the Params into a file for the driver, which replaces
    options. Without `needs_state` the job also works on a topic whose state is lost or not there
    yet. `options` exist only on the command line.
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
        """The Params that an Airflow task passes to the job, if there is no request."""
        return [] if self.request else self.params

    @property
    def works_on_adopted(self) -> bool:
        """True if the job works on adopted topics."""
        return self.on_adopted is OnAdopted.WORKS
