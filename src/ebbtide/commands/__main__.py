"""Read the lake, plan a job, run SQL, check the installation.

The parser is argparse, like every job's, because `ebbtide plan` passes a job's arguments on
unchanged. Importing typer would take another tenth of a second at each start.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType

from ebbtide import __version__
from ebbtide.commands import doctor, execute, key, plan, report, runs, sql, topics
from ebbtide.commands.answer import Answer, print_answer, print_error
from ebbtide.commands.environment import load_environment
from ebbtide.errors import EbbtideError, ExitCode, exit_code

COMMANDS: Mapping[str, ModuleType] = {
    "topics": topics,
    "report": report,
    "runs": runs,
    "key": key,
    "plan": plan,
    "execute": execute,
    "sql": sql,
    "doctor": doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return an exit code with the same meaning as a job's."""
    args = build_parser().parse_args(argv)
    load_environment()
    try:
        with _quiet_logs(as_json=args.json):
            answer: Answer = COMMANDS[args.command].answer(args)
    except EbbtideError as error:
        print_error(args.command, error, as_json=args.json)
        return exit_code([error])
    print_answer(args.command, answer, as_json=args.json)
    return answer.code


@contextmanager
def _quiet_logs(*, as_json: bool) -> Iterator[None]:
    """Silence the logs of libraries: Airflow's logging writes to stdout."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR if as_json else logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, described by their modules."""
    parser = argparse.ArgumentParser(prog="ebbtide", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"ebbtide {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        about = (module.__doc__ or "").strip()
        of_command = commands.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        of_command.add_argument("--json", action="store_true", help="print one JSON document")
        module.add_arguments(of_command)
    return parser


def console() -> None:
    """End the process with the command's exit code, quietly after Ctrl-C or a closed pipe."""
    with suppress(KeyboardInterrupt, BrokenPipeError):
        sys.exit(main())
    sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    console()
