"""A kept plan in Markdown, as the approval shows it: what goes, what stays and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ebbtide.log.plans.plan import Plan
from ebbtide.log.plans.summary import PartitionSummary
from ebbtide.log.state.topic_state import REPAIR
from ebbtide.log.undo.points import UNDO_RUN
from ebbtide.moments import minute
from ebbtide.orchestration.approval.answer import digests_of, kept
from ebbtide.orchestration.approval.settings import page_of
from ebbtide.text import number, seconds, size

MAX_ROWS = 20  # of a plan's table; its page has them all
MAX_PLANS = 10  # with a table of their own
_TITLES = "Partition, Records, Whole files, Bytes, By rule, Oldest event, Newest event".split(", ")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#])")


def question(plans: Sequence[Plan]) -> str:
    """Return the question in one line."""
    topics = sorted({plan.topic for plan in plans})
    jobs = ", ".join(dict.fromkeys(plan.job for plan in plans))
    where = topics[0] if len(topics) == 1 else f"{len(topics)} topics"
    records = number(_records(plans))
    if _is_repair(plans[0]):
        return f"{jobs}: repair {where}, by which {records} records leave?"
    what = (
        f"return {records} records to" if _is_undo(plans[0]) else f"remove {records} records from"
    )
    return f"{jobs}: {what} {where}?"


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
    verb = "return" if _is_undo(plan) else "remove"
    lines = [
        f"### {escaped(plan.topic)}",
        "",
        f"**{escaped(plan.job)}** would {verb} **{number(_records([plan]))}** records"
        f" ({size(total_bytes)}). {_requester(plan)} at {plan.made_at:%Y-%m-%d %H:%M} UTC.",
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
    snapshots, files = _due(plan)
    if snapshots or files:
        yield f"{number(snapshots)} snapshots expire, {number(files)} files are written anew."
    yield from list(_stays(plan))[:MAX_ROWS]
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
    for partition, of_partition in _partitions(plan).items():
        for stays in of_partition["stays"]:
            count = f"{number(stays['records'])} records stay" if "records" in stays else "it stays"
            yield f"Partition {partition}: {count}, {escaped(stays['reason'])}."


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
