"""What tests cost in CPU seconds: measured in each run, stored by file, and what follows from it.

`make durations` stores a whole run in durations.json. A file that is not stored there changes
nothing but the order and the quarter that it runs in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_time import tree_cpu_seconds

STORED = Path(__file__).parent / "durations.json"
SHOWN = 10
# As `addopts` of pyproject.toml does.
LEFT_OUT = ("long", "services", "compose", "browser", "pairs")
QUARTERS = 4
# Of the tests of `make test`: the dearest one, and all of them.
MOST_OF_A_TEST_S, MOST_OF_ALL_S = 20.0, 1100.0
# Tests that may cost more, and what each cannot be without.
DEARER = {
    "tests/dags/test_real_spark.py::test_a_night_after_an_ingest": (
        75.0,
        "Airflow starts five JVMs, one a stage: that they run is what it tests",
    ),
    "tests/runner/test_kill_9.py::test_a_killed_job_is_finished_by_the_next": (
        30.0,
        "two JVMs: the job that is killed, and the one that ends its work",
    ),
    "tests/jobs/delete_records/test_delete_records_against_a_broker.py"
    "::test_the_broker_answers_as_the_list_says": (
        30.0,
        "a broker starts, for this and 105 more tests",
    ),
    "tests/nights/test_sample_against_kafka.py::test_the_tables_hold_what_kafka_leaves": (
        35.0,
        "three nights of the sample, by Spark and by Kafka, which 32 more tests look at",
    ),
}
# A file whose costs are not stored is taken to cost so much.
_UNKNOWN_S = 30.0
# A directory that a run leaves its costs in, for a summary of several runs.
_COSTS = "EBBTIDE_TEST_COSTS"


@dataclass(slots=True)
class FileCosts:
    """CPU seconds of a file's tests: those of `make test`, the dearest of these, and long ones."""

    short: float = 0.0
    dearest: float = 0.0
    dearest_test: str = ""
    long: float = 0.0

    def add(self, test: str, seconds: float, *, is_long: bool, is_judged: bool = True) -> None:
        """Count a test; one that is not judged is never the dearest."""
        if is_long:
            self.long += seconds
            return
        self.short += seconds
        if is_judged and seconds > self.dearest:
            self.dearest, self.dearest_test = seconds, test

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.short + self.long


def read_stored(path: Path = STORED) -> dict[str, FileCosts]:
    """Return the stored costs by file; none if nothing was stored yet."""
    if not path.exists():
        return {}
    return {file: FileCosts(**costs) for file, costs in json.loads(path.read_text()).items()}


def store(costs: Mapping[str, FileCosts], path: Path = STORED) -> None:
    """Store the costs by file."""
    rounded = {file: _rounded(asdict(costs[file])) for file in sorted(costs)}
    path.write_text(json.dumps(rounded, indent=1) + "\n")


def _rounded(values: Mapping[str, object]) -> dict[str, object]:
    return {n: round(v, 1) if isinstance(v, float) else v for n, v in values.items()}


def dearest_first(items: list[pytest.Item], stored: Mapping[str, FileCosts]) -> None:
    """Begin with the files that cost most: one that begins last would run alone."""
    unknown = FileCosts(_UNKNOWN_S, long=_UNKNOWN_S)
    costs: dict[str, float] = {}
    for is_long in {is_left_out(item) for item in items}:
        for file in {file_of(item.nodeid) for item in items if is_left_out(item) == is_long}:
            of_file = stored.get(file, unknown)
            costs[file] = costs.get(file, 0.0) + (of_file.long if is_long else of_file.short)
    items.sort(key=lambda item: -costs[file_of(item.nodeid)])


def quarters(files: Iterable[str], stored: Mapping[str, FileCosts]) -> dict[str, int]:
    """Deal files to four quarters, so that their long tests cost about the same."""
    unknown = FileCosts(long=_UNKNOWN_S)
    costs = {file: stored.get(file, unknown).long for file in set(files)}
    loads, dealt = [0.0] * QUARTERS, {}
    for file in sorted(costs, key=lambda file: (-costs[file], file)):
        lightest = loads.index(min(loads))
        loads[lightest] += costs[file]
        dealt[file] = lightest
    return dealt


def quarter_of(asked: str) -> int:
    """Return the number of a quarter; `git` takes the number of commits modulo four.

    A shallow clone does not know that number: the commit's own takes its place.
    """
    if asked != "git":
        return int(asked) % QUARTERS
    if _git("rev-parse", "--is-shallow-repository") == "true":
        return int(_git("rev-parse", "HEAD"), 16) % QUARTERS
    return int(_git("rev-list", "--count", "HEAD")) % QUARTERS


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(STORED.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def without_short_case(items: Iterable[pytest.Item]) -> list[str]:
    """Return the tests whose mark `long` names a case that is none of theirs."""
    named, short = dict[str, str](), set[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        mark = item.get_closest_marker("long")
        if mark is None:
            short.add(test)
        elif "but" in mark.kwargs:
            named[test] = mark.kwargs["but"]
    return [f"{test} has no case {case!r}" for test, case in named.items() if test not in short]


def is_short_case(name: str, mark: pytest.Mark) -> bool:
    """Return whether the mark `long` names this case of its test as one of `make test`."""
    return mark.name == "long" and "but" in mark.kwargs and name.endswith(f"[{mark.kwargs['but']}]")


def _has_spark() -> bool:
    spark = sys.modules.get("pyspark")
    return spark is not None and spark.SparkContext._active_spark_context is not None


def is_left_out(item: pytest.Item) -> bool:
    """Return whether `make test` leaves the test out."""
    return any(item.get_closest_marker(mark) is not None for mark in LEFT_OUT)


def file_of(node_id: str) -> str:
    """Return the file of a test."""
    return node_id.partition("::")[0]


class Durations:
    """Plugin: measures each test where it runs, and shows the dearest files at the end."""

    def __init__(self, *, is_to_store: bool) -> None:
        self.is_to_store = is_to_store
        self.costs: dict[str, FileCosts] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Refuse a mark that leaves no case in `make test`, where whole files were collected."""
        is_whole = not any("::" in arg for arg in config.args)
        if is_whole and (wrong := without_short_case(items)):
            raise pytest.UsageError("; ".join(wrong))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before, had_spark = tree_cpu_seconds(os.getpid()), _has_spark()
        yield
        seconds = max(0.0, tree_cpu_seconds(os.getpid()) - before)
        file, _, test = item.nodeid.partition("::")
        costs = self.costs.setdefault(file, FileCosts())
        # Whichever test comes first starts Spark for all the others of its process.
        starts_spark = _has_spark() and not had_spark
        costs.add(test, seconds, is_long=is_left_out(item), is_judged=not starts_spark)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take what one of xdist's processes has measured; a file runs in one of them."""
        output: dict[str, Any] = getattr(node, "workeroutput", {})
        self.costs |= {
            file: FileCosts(**fields) for file, fields in output.get("costs", {}).items()
        }

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = {file: asdict(cost) for file, cost in self.costs.items()}
            return
        if self.is_to_store:
            store(self.costs)
        if directory := os.environ.get(_COSTS):
            Path(directory).mkdir(parents=True, exist_ok=True)
            costs = {file: cost.seconds for file, cost in self.costs.items()}
            (Path(directory) / f"{os.getpid()}.json").write_text(json.dumps(costs))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.costs:
            return
        total = sum(cost.seconds for cost in self.costs.values())
        terminalreporter.section(f"{total:,.0f} CPU seconds; the dearest files")
        for line in dearest_files(self.costs):
            terminalreporter.line(line)
        for line in over_budget(self.costs):
            terminalreporter.line(f"over budget: {line}", yellow=True)


def dearest_files(costs: Mapping[str, FileCosts]) -> list[str]:
    """Return a line for each of the files that cost most."""
    files = sorted(costs, key=lambda file: -costs[file].seconds)[:SHOWN]
    return [f"{costs[file].seconds:7.1f} CPU s  {file}" for file in files]


def over_budget(costs: Mapping[str, FileCosts]) -> list[str]:
    """Say which tests of `make test` cost too much, and whether all of them do."""
    lines = [
        f"{file}::{cost.dearest_test} costs {cost.dearest:.1f} CPU s, and a test of `make test` "
        f"may cost {most_of(file, cost.dearest_test):.0f}; make it cheaper or mark it long"
        for file, cost in sorted(costs.items())
        if cost.dearest > most_of(file, cost.dearest_test)
    ]
    total = sum(cost.short for cost in costs.values())
    if total > MOST_OF_ALL_S:
        lines.append(
            f"the tests of `make test` cost {total:,.0f} CPU s, and may cost {MOST_OF_ALL_S:,.0f} "
            "in all; mark some long"
        )
    return lines


def most_of(file: str, test: str) -> float:
    """Return the CPU seconds that a test of `make test` may cost."""
    function = test.partition("[")[0]
    most, _ = DEARER.get(f"{file}::{function}", (MOST_OF_A_TEST_S, ""))
    return most


def only_of_quarter(
    items: list[pytest.Item], quarter: int, stored: Mapping[str, FileCosts]
) -> Collection[pytest.Item]:
    """Return the tests of files that another quarter has."""
    dealt = quarters((file_of(item.nodeid) for item in items), stored)
    return [item for item in items if dealt[file_of(item.nodeid)] != quarter]
