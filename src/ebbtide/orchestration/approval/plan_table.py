"""A kept plan as the pages and the approval show it: what goes, what stays and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ebbtide.log.plans.plan import Plan
from ebbtide.log.plans.summary import PartitionSummary, RuleNumbers, stays_in_words
from ebbtide.log.requests.hold_request import Action
from ebbtide.log.state.topic_state import REPAIR
from ebbtide.log.undo.points import UNDO_RUN
from ebbtide.moments import minute
from ebbtide.orchestration.approval.answer import digests_of, kept
from ebbtide.orchestration.approval.settings import page_of
from ebbtide.text import number, seconds, size

MAX_ROWS = 20  # of a plan's table; its page has them all
MAX_PLANS = 10  # with a table of their own
_SETTINGS_NAMED = 3
_VALUE = 40  # characters of a setting's value
_TITLES = "Partition, Records, Whole files, Bytes, By rule, Oldest event, Newest event".split(", ")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#])")


def question(plans: Sequence[Plan]) -> str:
    """Return the question in one line: what is done, and what is removed by it."""
    by_job: dict[str, list[Plan]] = {}
    for plan in plans:
        by_job.setdefault(plan.job, []).append(plan)
    removing = [job for job in by_job if job not in _ACTS]
    together = [plan for job in removing for plan in by_job[job]]
    asked = [f"{', '.join(removing)}: {_removal(together)}"] if together else []
    asked += [f"{job}: {_ACTS[job](of)}" for job, of in by_job.items() if job in _ACTS]
    return "; ".join(asked) + "?"


class PlanReport(NamedTuple):
    """What an execution of a plan does, as the end of `The job would`, and more.

    A row of texts for each partition that something leaves, and a sentence for each thing that
    they do not tell.
    """

    act: str
    rows: Sequence[Sequence[str]]
    facts: Sequence[str]


def report_of(plan: Plan, *, is_question: bool = False) -> PlanReport:
    """Return the report of a plan; that of a question is shorter and has examples of keys."""
    act = _ACTS.get(plan.job, _removal)([plan])
    return PlanReport(act, list(_rows(plan)), list(_facts(plan, is_question=is_question)))


def _removal(plans: Sequence[Plan]) -> str:
    return f"remove {_counted(plans)} from {_where(plans)}"


def _snapshots(plans: Sequence[Plan]) -> str:
    due = [_due(plan) for plan in plans]
    snapshots, files = (sum(counts) for counts in zip(*due, strict=True))
    expire = _of(snapshots, "snapshot")
    return f"expire {expire} of {_where(plans)} and rewrite {_of(files, 'file')}"


def _quarantine(plans: Sequence[Plan]) -> str:
    return f"mark tombstones of {_where(plans)} and move {_counted(plans)} to quarantine"


def _erasure(plans: Sequence[Plan]) -> str:
    keys = sum(plan.parameters.get("keys", 0) for plan in plans)
    of = "it" if keys == 1 else "them"
    return f"erase {_of(keys, 'key')} from {_where(plans)} and remove {_counted(plans)} of {of}"


def _undo(plans: Sequence[Plan]) -> str:
    runs = ", ".join(dict.fromkeys(f"run {plan.parameters.get('run', '?')}" for plan in plans))
    return f"undo {runs} on {_where(plans)} and restore {_counted(plans)}"


def _repairing(plans: Sequence[Plan]) -> str:
    return f"repair {_where(plans)} and remove {_counted(plans)}"


def _hold(plans: Sequence[Plan]) -> str:
    """Return which hold ends or covers less: only copies are deleted, no record of the topic."""
    holds = ", ".join(
        f"{'end' if plan.parameters.get('action') == Action.END else 'narrow'} hold "
        f"{plan.parameters.get('hold_id', '?')}"
        for plan in plans
    )
    copies = _of(_records(plans), "copy", "copies")
    return f"{holds} on {_where(plans)} and delete {copies} of records that it kept"


def _settings(plans: Sequence[Plan]) -> str:
    """Return which settings change; they remove nothing before the next night."""
    changes = [change for plan in plans for change in setting_changes(plan)]
    more = len(changes) - _SETTINGS_NAMED
    named = ", ".join(changes[:_SETTINGS_NAMED]) + (f" and {more} more" if more > 0 else "")
    records = _records(plans)
    then = f"remove {_counted(plans)}" if records else "remove nothing, and a later one may"
    return f"{named} on {_where(plans)}, by which the next night would {then}"


def setting_changes(plan: Plan) -> list[str]:
    """Return the settings that a plan of configure_topic changes, each with its verb."""
    changes = plan.parameters.get("changes", {})
    return [
        f"unset {name}" if value is None else f"set {name}={_shortened(value)}"
        for name, value in changes.items()
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}..."


def _where(plans: Sequence[Plan]) -> str:
    topics = sorted({plan.topic for plan in plans})
    return topics[0] if len(topics) == 1 else f"{len(topics)} topics"


def _counted(plans: Sequence[Plan]) -> str:
    return _of(_records(plans), "record")


def _of(count: int, one: str, many: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


_ACTS: Mapping[str, Callable[[Sequence[Plan]], str]] = {
    "configure_topic": _settings,
    "erase_keys": _erasure,
    "expire_snapshots": _snapshots,
    "hold_records": _hold,
    "mark_tombstones": _quarantine,
    REPAIR: _repairing,
    UNDO_RUN: _undo,
}


def removes_something(plan: Plan) -> bool:
    """Return whether anything would leave by the plan: records, files, snapshots.

    An undo changes something wherever it takes a run back, also where no record returns, and a
    repair wherever others have changed something.
    """
    if plan.job == UNDO_RUN:
        return bool(plan.bounds)
    if plan.job == REPAIR:
        return bool(plan.parameters["found"])
    of_partitions = any(
        of["records"] or of["files"] or of["rules"] for of in _partitions(plan).values()
    )
    return of_partitions or any(_due(plan))


def in_markdown(plans: Sequence[Plan], until: str) -> str:
    """Return the plans, a table each, and until when the answer counts."""
    sections = [_section(plan) for plan in plans[:MAX_PLANS]]
    if rest := plans[MAX_PLANS:]:
        sections.append("And these: " + ", ".join(_link(plan) for plan in rest))
    sections.append(f"No answer until {until} UTC counts as **Reject**: nothing is changed then.")
    return "\n\n".join(sections)


def escaped(text: str) -> str:
    """Return the text so that Markdown shows it as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _section(plan: Plan) -> str:
    report = report_of(plan, is_question=True)
    total_bytes = sum(of["bytes"] for of in _partitions(plan).values())
    bytes_of = f" ({size(total_bytes)})" if total_bytes else ""
    digest = digests_of([kept(plan)])
    lines = [
        f"### {escaped(plan.topic)}",
        "",
        f"**{escaped(plan.job)}** would {escaped(report.act)}{bytes_of}. {_requester(plan)} at "
        f"{plan.made_at:%Y-%m-%d %H:%M} UTC.",
        "",
        *_table(report.rows),
        *(f"* {escaped(fact)}" for fact in report.facts),
        f"* Plan {_link(plan)}, digest `{digest}`, may be executed until "
        f"{plan.expires_at:%Y-%m-%d %H:%M} UTC.",
    ]
    return "\n".join(lines)


def _requester(plan: Plan) -> str:
    if plan.requested_by:
        return f"Asked for by **{escaped(plan.requested_by)}**"
    return f"Planned by {escaped(plan.dag or plan.job)}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the first rows as a table, and an empty line behind them."""
    if not rows:
        return
    yield _row(_TITLES)
    yield _row(["---", "---:", "---:", "---:", "---", "---", "---"])
    yield from map(_row, rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield _row([f"and {len(rows) - MAX_ROWS:,} partitions more on the plan's page"])
    yield ""


def _rows(plan: Plan) -> Iterator[Sequence[str]]:
    for partition, of_partition in _partitions(plan).items():
        if of_partition["records"] or of_partition["rules"]:
            yield [
                partition,
                number(of_partition["records"]),
                number(of_partition["files"]),
                size(of_partition["bytes"]),
                "; ".join(_rule(*item) for item in of_partition["rules"].items()),
                minute(of_partition["oldest_event_ms"]),
                minute(of_partition["newest_event_ms"]),
            ]


def _rule(rule: str, numbers: RuleNumbers) -> str:
    """Return what a rule removes, such as `retention ms: 1,200 records in 3 segments`."""
    segments = numbers.get("segments")
    where = f" in {_of(segments, 'segment')}" if segments else ""
    return f"{rule.replace('_', ' ')}: {_of(numbers['records'], 'record')}{where}"


def _facts(plan: Plan, *, is_question: bool) -> Iterator[str]:
    """Yield what the rows do not tell, a sentence each."""
    most = MAX_ROWS if is_question else None
    for hold, records in plan.summary.get("kept_by_holds", {}).items():
        yield f"{hold} keeps {number(records)} of these records: they are copied first."
    if guard := plan.summary.get("guard"):
        yield f"A guard stopped the night: {guard}."
    if plan.job == REPAIR:
        for line in plan.parameters["found"][:most]:
            yield f"Others have changed the topic: {line}."
        for table, snapshot in plan.parameters["back_to"].items():
            yield f"The {table} table goes back to snapshot {snapshot}."
    for partition, of_partition in list(_partitions(plan).items())[:most]:
        if sets := of_partition.get("sets"):
            yield f"Partition {partition} gets {'; '.join(sets)}."
    if is_question and plan.job == "configure_topic":  # the page has it above its table
        yield "An approval removes nothing itself: the records below go with the next night."
    lines = stays_in_words(_partitions(plan))
    for line in lines[:most]:
        yield f"{line[0].upper()}{line[1:]}."
    if more := len(lines[len(lines[:most]) :]):
        yield f"And {_of(more, 'reason')} more on the plan's page."
    keys = [key for of in _partitions(plan).values() for key in of["example_keys"]]
    if keys and is_question:
        yield f"Examples of keys, as the plan may show them: {', '.join(keys[:3])}."
    if (took := plan.summary.get("seconds")) is not None:
        yield f"The job took {seconds(took)} s for this topic before."


def _due(plan: Plan) -> tuple[int, int]:
    """Return how many snapshots expire and files are rewritten, which are in no partition."""
    snapshots = plan.parameters.get("snapshots", {})
    return sum(map(len, snapshots.values())), len(plan.parameters.get("files", ()))


def _partitions(plan: Plan) -> Mapping[str, PartitionSummary]:
    partitions: Mapping[str, PartitionSummary] = plan.summary["partitions"]
    return partitions


def _records(plans: Iterable[Plan]) -> int:
    return sum(of["records"] for plan in plans for of in _partitions(plan).values())


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def _link(plan: Plan) -> str:
    return f"[{escaped(plan.plan_id)}]({page_of(plan.plan_id)})"
