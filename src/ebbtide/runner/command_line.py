"""Parse a job's command line, as its spec declares it: a request, or stored plans to execute."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NoReturn, TypeVar

from ebbtide.errors import EbbtideError
from ebbtide.runner.failures import add_cause
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.delete_request import parse_request, read_request
from ebbtide.specs.job_spec import JobSpec

# Not allowed with --plan, like the arguments of a request.
_NOT_WITH_PLAN = ("plan_only", "plan_file", "requested_by", "triggered_by")
_ONLY_WITH_PLAN = ("approved_by", "rejected_by", "unanswered", "approval_note")
_ANSWERS = ("approved_by", "rejected_by", "unanswered")

T = TypeVar("T")


class _JobParser(argparse.ArgumentParser):
    """A parser that also writes its errors to the file of causes that Airflow reads."""

    def error(self, message: str) -> NoReturn:
        """Write the cause for Airflow, print the usage, and exit with 2."""
        add_cause(None, message)
        super().error(message)


def parse_job(
    job: str,
    argv: Sequence[str] | None = None,
    check: Callable[[argparse.Namespace], None] = lambda args: None,
) -> argparse.Namespace:
    """Parse a job's arguments: a request, or the ids of stored plans.

    `check` raises an EbbtideError if arguments contradict each other, and may add parsed values.
    """
    spec = SPECS[job]
    parser = job_parser(spec)
    args = parser.parse_args(argv)
    if spec.is_planned:
        _check_plans(parser, spec, args)
    try:
        check(args)
    except EbbtideError as error:
        parser.error(str(error))
    return args


def job_parser(spec: JobSpec) -> argparse.ArgumentParser:
    """Return the parser of the arguments that all jobs share and of the job's own parameters."""
    parser = _JobParser(prog=spec.name, description=f"{spec.name}: {spec.summary}.")
    parser.set_defaults(job=spec.name)
    is_required = not spec.is_planned
    if spec.request:
        given = parser.add_mutually_exclusive_group()
        what = "topics, and their limit: by offset, timestamp, age or consumer groups"
        given.add_argument("--request", type=_argument(parse_request), help=what)
        in_file = "a file with the request, which the driver reads"
        given.add_argument(
            "--request-file", dest="request", type=_argument(read_request), help=in_file
        )
    else:
        parser.add_argument(
            "--topic",
            action="append",
            default=[],
            required=is_required and not spec.is_ingest,
            type=_argument(TopicName.parse),
            metavar="CLUSTER.TOPIC",
            help="a topic to work on; repeat for more",
        )
    parser.add_argument(
        "--now",
        required=is_required,
        type=parse_now,
        metavar="ISO8601",
        help="the run's `now`, such as 2026-11-22T01:00:00+00:00",
    )
    parser.add_argument("--run-id", required=True, help="id of the run in lake.ebbtide.runs")
    parser.add_argument("--dag", help="the Airflow DAG of the run")
    parser.add_argument("--task", help="the Airflow task of the run")
    parser.add_argument(
        "--plan-only", action="store_true", help="print the plan, and change nothing"
    )
    parser.add_argument("--plan-file", metavar="PATH", help="file to append the plans to")
    if spec.is_planned:
        _add_plans(parser)
    known = {"--requested-by", "--topic", "--plan-only", ""}
    for param in [*spec.asked, *spec.options]:
        if param.flag not in known:
            facts = param.on_command_line()
            if "type" in facts:
                facts["type"] = _argument(facts["type"])
            if param.is_required and is_required:
                facts["required"] = True
            parser.add_argument(param.flag, help=param.help.replace("%", "%%"), **facts)
    return parser


def _add_plans(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job that stores its plans."""
    parser.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="PLAN_ID",
        help="execute this stored plan, which has topic, request and now; repeat for more",
    )
    asks = os.environ.get("EBBTIDE_GIVEN_REQUESTED_BY") or None
    parser.add_argument("--requested-by", metavar="USER", default=asks, help="user who requests")
    parser.add_argument(
        "--triggered-by",
        metavar="USER",
        help="user who started the run, compared with the approver by four eyes [--requested-by]",
    )
    parser.add_argument("--approved-by", metavar="USER", help="user who approved the plans")
    parser.add_argument("--rejected-by", metavar="USER", help="user who rejected the plans")
    parser.add_argument(
        "--unanswered",
        action="store_true",
        help="reject the plans that are still open, because the time to answer is over",
    )
    parser.add_argument("--approval-note", metavar="TEXT", help="comment of the user who answered")


def _check_plans(parser: argparse.ArgumentParser, spec: JobSpec, args: argparse.Namespace) -> None:
    """Refuse arguments that a stored plan has next to --plan, and missing ones without --plan."""
    asked = [param for param in spec.asked if param.flag]
    required = ["request" if spec.request else "topic", "now"]
    required += [param.name for param in asked if param.is_required]
    # Options with a default are not refused: they have a value even if not given.
    stored = [p.name for p in asked if p.is_stored and p.default is None and not p.choices]
    if args.plan:
        named = dict.fromkeys([*required, *stored, *_NOT_WITH_PLAN])
        if both := _options(name for name in named if getattr(args, name)):
            parser.error(f"expected --plan without {both}, found both: the plan has these values")
        if len(answers := [name for name in _ANSWERS if getattr(args, name)]) > 1:
            parser.error(f"expected one answer to the plans, found {_options(answers)}")
        return
    if alone := _options(name for name in _ONLY_WITH_PLAN if getattr(args, name)):
        parser.error(f"expected {alone} only with --plan, found no --plan")
    if missing := _options(name for name in required if not getattr(args, name)):
        parser.error(f"the following arguments are required: {missing}; or --plan")


def _options(names: Iterable[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap `parse` so that argparse shows the message of its EbbtideError."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except EbbtideError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def parse_now(text: str) -> datetime:
    """Parse an ISO 8601 time with a zone, and return it in UTC."""
    try:
        now = datetime.fromisoformat(text)
        if now.tzinfo is not None:
            return now.astimezone(UTC)
    except (OverflowError, ValueError):
        pass
    raise argparse.ArgumentTypeError(f"expected an ISO 8601 time with a zone, found {text!r}")
