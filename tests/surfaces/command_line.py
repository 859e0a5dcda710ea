"""The options of each job and of the `ebbtide` command, as they are taken and refused."""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
from unittest.mock import patch

from ebbtide.commands.__main__ import main as ebbtide_main
from tests.lake_sandbox import ROOT

Main = Callable[[Sequence[str]], int]
Command = Mapping[str, str | None]  # a flag has no value
Facts = dict[str, Any]

REFUSED = 2
REQUEST = '{"topics": [{"topic": "log.a", "partitions": [{"partition": 0, "offset": 2}]}]}'
# An option that refuses the text is tried with each of the probes.
TEXT = "x"
PROBES = ("-1", "7", "7=7", "7:7", "log.a", "kafka.retention.ms=7", "2026-01-01T00:00:00Z")
CLOCK = {"--now": "2026-01-01T00:00:00Z", "--run-id": "r"}
ON_TOPIC = {**CLOCK, "--topic": "log.a"}
LIVE = {**CLOCK, "--connection": "k", "--cluster": "log"}
PLAN = {"--run-id": "r", "--plan": "clean_log-20260101-0123abcd"}
# Whole commands of jobs that need more than a topic. What all of a job's need is required.
COMMANDS: Mapping[str, Sequence[Command]] = {
    "delete_records": [{**CLOCK, "--request": REQUEST}, {**CLOCK, "--request-file": ""}],
    "erase_keys": [{**ON_TOPIC, "--requested-by": "ann", "--reason": "7"}],
    "export_segments": [{**ON_TOPIC, "--target": "/to"}],
    "hold_records": [
        {**ON_TOPIC, "--action": "make"},
        {**ON_TOPIC, "--action": "end", "--hold": "h-1"},
    ],
    "ingest_segments": [{**ON_TOPIC, "--source": "/log", "--cluster": "log"}],
    "ingest_topic": [{**LIVE, "--topic": "log.a"}, {**LIVE, "--topics-pattern": "a.*"}],
    "undo_run": [{**ON_TOPIC, "--run": "run-1"}],
}


class Stopped(BaseException):
    """Ends a command early: it parses, it has found an error, or it asks for Spark."""


def stop_at(place: str) -> Callable[..., NoReturn]:
    """Return what replaces a function, and raises."""

    def stop(*given: Any, **_: Any) -> NoReturn:
        raise Stopped(place, *given)

    return stop


def collect() -> dict[str, Any]:
    """Return the options of all jobs and commands, each in a line."""
    from pyspark.sql import SparkSession

    jobs = {}
    with (
        TemporaryDirectory() as folder,
        patch.object(SparkSession.Builder, "getOrCreate", stop_at("Spark")),
        patch.object(argparse.ArgumentParser, "error", stop_at("error")),
    ):
        file = Path(folder) / "request.json"
        file.write_text(REQUEST)
        for path in sorted((ROOT / "jobs").glob("*.py")):
            main = runpy.run_path(str(path))["main"]
            commands = [{**command} for command in COMMANDS.get(path.stem, [ON_TOPIC])]
            for command in commands:
                command.update({"--request-file": str(file)} if "--request-file" in command else {})
            jobs[path.stem] = in_lines(facts_of_job(main, commands))
        subparsers = parser_of(ebbtide_main)._actions[-1].choices
    assert isinstance(subparsers, Mapping)
    ebbtide = {name: in_lines(facts_of(parser)) for name, parser in subparsers.items()}
    return {"jobs": jobs, "ebbtide": ebbtide}


def parser_of(main: Main) -> argparse.ArgumentParser:
    """Return the parser that `main` builds; `parse_args` calls `parse_known_args`."""
    with patch.object(argparse.ArgumentParser, "parse_known_args", stop_at("parsing")):
        try:
            main([])
        except Stopped as stopped:
            parser: argparse.ArgumentParser = stopped.args[1]
            return parser
    raise AssertionError("expected argparse to be asked, found that it was not")


def facts_of(parser: argparse.ArgumentParser) -> dict[str, Facts]:
    """Return the facts of each option by its name, and of arguments by their place."""
    options: dict[str, Facts] = {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        place = f"argument {sum(not name.startswith('-') for name in options) + 1}"
        options[" ".join(action.option_strings) or place] = {
            "a flag": action.nargs == 0,
            "repeatable": isinstance(action, argparse._AppendAction),
            "nargs": action.nargs or None,
            "one of": [str(choice) for choice in action.choices or ()],
            "default": action.default or None,
            "required": action.required,
        }
    return options


def facts_of_job(main: Main, commands: Sequence[Command]) -> dict[str, Facts]:
    """Return a job's options and what it was seen to take, without and with --plan."""
    options = facts_of(parser_of(main))
    for name, facts in options.items():
        own = next((command[name] for command in commands if name in command), None)
        values = [None] if facts["a flag"] else facts["one of"] or [TEXT]
        taken = [value for value in values if takes(main, commands, name, value)]
        if values == [TEXT] and not taken:
            taken = [probe for probe in PROBES if takes(main, commands, name, probe)]
            facts["takes"] = taken
        facts["required"] = not any(accepts(main, without(command, name)) for command in commands)
        facts["rejected without --plan"] = not taken and own is None
        if "--plan" in options:
            valid = own or next(iter(taken), values[0])
            facts["required with --plan"] = not accepts(main, without(PLAN, name))
            facts["rejected with --plan"] = not takes(main, [PLAN], name, valid)
    return options


def in_lines(options: Mapping[str, Facts]) -> dict[str, str]:
    """Return the facts of each option in a line, without those that are not so."""
    lines = {}
    for name, facts in options.items():
        parts = []
        for fact, value in facts.items():
            text = " | ".join(value) if isinstance(value, list) else value
            parts += [fact if value is True else f"{fact} {text}"] if value else []
        lines[name] = ", ".join(parts) or "any text"
    return lines


def takes(main: Main, commands: Sequence[Command], name: str, value: str | None) -> bool:
    return any(accepts(main, {**command, name: value}) for command in commands)


def without(command: Command, name: str) -> Command:
    return {option: value for option, value in command.items() if option != name}


def accepts(main: Main, command: Command) -> bool:
    """Return whether the job asks for Spark, given these arguments."""
    try:
        code = main([n if value is None else f"{n}={value}" for n, value in command.items()])
    except Stopped as stopped:
        return bool(stopped.args[0] == "Spark")
    assert code == REFUSED, (command, code)
    return "--topics-pattern" in command  # it is taken, and no brokers can be asked here
