"""A kept plan in Markdown, as the approval shows it: what goes, what stays and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ebbtide.log.plans.plan import Plan
from ebbtide.log.plans.summary import PartitionSummary, staying_together
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


def act(plan: Plan) -> str:
    """Return what an execution of the plan does, as the end of `The job would`."""
    return _ACTS.get(plan.job, _removal)([plan])


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
    if _is_undo(plan):
        return bool(plan.bounds)
    if _is_repair(plan):
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
    total_bytes = sum(of["bytes"] for of in _partitions(plan).values())
    bytes_of = f" ({size(total_bytes)})" if total_bytes else ""
    lines = [
        f"### {escaped(plan.topic)}",
        "",
        f"**{escaped(plan.job)}** would {escaped(act(plan))}{bytes_of}. {_requester(plan)} at "
        f"{plan.made_at:%Y-%m-%d %H:%M} UTC.",
        "",
        *_table(plan),
        *(f"* {fact}" for fact in _facts(plan)),
    ]
    return "\n".join(lines)


def _is_undo(plan: Plan) -> bool:
    return plan.job == UNDO_RUN


def _is_repair(plan: Plan) -> bool:
    return plan.job == REPAIR


def _requester(plan: Plan) -> str:
    if plan.requested_by:
        return f"Asked for by **{escaped(plan.requested_by)}**"
    return f"Planned by {escaped(plan.dag or plan.job)}"


def _table(plan: Plan) -> Iterator[str]:
    """Yield a row for each partition that something leaves, and an empty line behind them."""
    leaving = {p: of for p, of in _partitions(plan).items() if of["records"] or of["rules"]}
    if not leaving:
        return
    yield _row(_TITLES)
    yield _row(["---", "---:", "---:", "---:", "---", "---", "---"])
    for partition, of_partition in list(leaving.items())[:MAX_ROWS]:
        yield _row(
            [
                partition,
                number(of_partition["records"]),
                number(of_partition["files"]),
                size(of_partition["bytes"]),
                _rules(of_partition),
                minute(of_partition["oldest_event_ms"]),
                minute(of_partition["newest_event_ms"]),
            ]
        )
    if len(leaving) > MAX_ROWS:
        yield _row([f"and {len(leaving) - MAX_ROWS:,} partitions more on the plan's page"])
    yield ""


def _rules(of_partition: PartitionSummary) -> str:
    """Return what each rule removes, such as `retention ms: 1,200 records in 3 segments`."""
    parts = []
    for rule, numbers in of_partition["rules"].items():
        segments = numbers.get("segments")
        where = f" in {number(segments)} segments" if segments else ""
        parts.append(f"{rule.replace('_', ' ')}: {number(numbers['records'])} records{where}")
    return "; ".join(parts)


def _facts(plan: Plan) -> Iterator[str]:
    """Yield what the table does not tell, a sentence each."""
    for hold, records in plan.summary.get("kept_by_holds", {}).items():
        yield f"{escaped(hold)} keeps {number(records)} of these records: they are copied first."
    if guard := plan.summary.get("guard"):
        yield f"A guard stopped the night: {escaped(guard)}."
    if _is_repair(plan):
        yield from _repair(plan)
    if plan.job == "configure_topic":
        yield "An approval removes nothing itself: the records below go with the next night."
    yield from _stays(plan)
    if keys := [key for of in _partitions(plan).values() for key in of["example_keys"]]:
        yield f"Examples of keys, as the plan may show them: {', '.join(map(escaped, keys[:3]))}."
    if (took := plan.summary.get("seconds")) is not None:
        yield f"The job took {seconds(took)} s for this topic before."
    yield (
        f"Plan {_link(plan)}, digest `{digests_of([kept(plan)])}`, may be executed until "
        f"{plan.expires_at:%Y-%m-%d %H:%M} UTC."
    )


def _repair(plan: Plan) -> Iterator[str]:
    """Yield what others did, and what the repair does beside taking rows out."""
    for line in plan.parameters["found"][:MAX_ROWS]:
        yield f"Others have changed the topic: {escaped(line)}."
    for table, snapshot in plan.parameters["back_to"].items():
        yield f"The {table} table goes back to snapshot {snapshot}."
    for partition, of_partition in list(_partitions(plan).items())[:MAX_ROWS]:
        if sets := of_partition.get("sets"):
            yield f"Partition {partition} gets {escaped('; '.join(sets))}."


def _stays(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each reason why something stays, and how many reasons there are more."""
    lines = [of.in_words() for of in staying_together(_partitions(plan))]
    for line in lines[:MAX_ROWS]:
        yield f"{escaped(line[0].upper() + line[1:])}."
    if (more := len(lines) - MAX_ROWS) > 0:
        yield f"And {_of(more, 'reason')} more on the plan's page."


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
