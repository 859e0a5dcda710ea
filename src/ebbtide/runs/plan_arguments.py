"""Arguments of a job whose plans are kept: what it is asked, or the plans to execute."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence

from ebbtide.log.requests.words import VARIABLES
from ebbtide.runs.application import job_parser

# Besides those that name the request, these make no sense for a plan that is executed.
_NOT_WITH_PLAN = ("plan_only", "plan_file", "requested_by", "triggered_by")
_ONLY_WITH_PLAN = ("approved_by", "rejected_by", "unanswered", "approval_note")
_ANSWERS = ("approved_by", "rejected_by", "unanswered")


def planned_parser(
    job: str, description: str, *, has_topics: bool = True
) -> argparse.ArgumentParser:
    """Return the arguments that every job takes whose plans are kept."""
    parser = job_parser(job, description, has_topics=has_topics, are_required=False)
    parser.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="PLAN_ID",
        help="execute this kept plan; repeat for more. It has topic, request and now",
    )
    parser.add_argument(
        "--requested-by", metavar="USER", default=given("requested_by"), help="who asks"
    )
    parser.add_argument(
        "--triggered-by",
        metavar="USER",
        help="who started the run, whom four eyes are about; else who asks",
    )
    parser.add_argument("--approved-by", metavar="USER", help="who has approved the plans")
    parser.add_argument("--rejected-by", metavar="USER", help="who has rejected the plans")
    parser.add_argument(
        "--unanswered",
        action="store_true",
        help="nobody has answered for the plans in time, which rejects those still open",
    )
    parser.add_argument("--approval-note", metavar="TEXT", help="what that person says")
    return parser


def given(name: str) -> str | None:
    """Return a word about people from the driver's environment, or None if it has none.

    It is the default of the option of the same name.
    """
    return os.environ.get(VARIABLES[name]) or None


def parse_planned(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> argparse.Namespace:
    """Parse the arguments; a kept plan stands for the `required` and `optional` ones."""
    args = parser.parse_args(argv)
    if args.plan:
        named = dict.fromkeys([*required, *optional, *_NOT_WITH_PLAN])
        if both := _options(name for name in named if getattr(args, name)):
            parser.error(f"expected no {both} beside --plan, which has it, found both")
        if len(answers := [name for name in _ANSWERS if getattr(args, name)]) > 1:
            parser.error(f"expected one answer, found {_options(answers)}")
        return args
    if alone := _options(name for name in _ONLY_WITH_PLAN if getattr(args, name)):
        parser.error(f"expected {alone} with --plan alone, found no --plan")
    if missing := _options(name for name in required if not getattr(args, name)):
        parser.error(f"the following arguments are required: {missing}; or --plan")
    return args


def _options(names: Iterable[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)
