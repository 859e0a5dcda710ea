"""One name for one class, and a job loads what it needs and not the whole house."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_MODULES = 100


def test_no_public_class_has_the_name_of_another() -> None:
    names = Counter(
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(names) > 300
    assert [name for name, times in names.items() if times > 1] == []


def test_a_job_loads_what_it_needs() -> None:
    code = (
        "import sys, jobs.mark_tombstones\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'ebbtide'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "ebbtide.errors" in loaded
    assert len(loaded) <= MOST_MODULES, sorted(loaded)


def test_commands_and_serve_load_neither_airflow_nor_spark() -> None:
    """Airflow takes seconds: a command that reads the lake would begin with them."""
    code = (
        "import sys, ebbtide.commands.__main__, ebbtide.local.serve\n"
        "print(*({'airflow', 'pyspark', 'pyiceberg', 'pyarrow'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_no_variable_is_called_of() -> None:
    """A variable has the name of what it holds."""
    roots = ("src", "dags", "jobs", "plugins", "tests", "benchmarks", "docs")
    paths = [path for root in roots for path in (ROOT / root).rglob("*.py")]
    assert len(paths) > 500
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.arg) and node.arg == "of")
        or (isinstance(node, ast.Name) and node.id == "of" and isinstance(node.ctx, ast.Store))
    ]
    assert found == []


def test_jobs_read_the_machines_clock_in_one_place() -> None:
    """What is removed follows from a run's `now`; `machine_clock` says where it does not."""
    rooms = [ROOT / "src" / "ebbtide" / room for room in ("jobs", "runner", "iceberg", "kafka")]
    clocks = ("datetime.now(", "datetime.utcnow(", "time.time(", "time.time_ns(")
    found = [
        f"{path.relative_to(ROOT)}: {clock}"
        for room in rooms
        for path in room.rglob("*.py")
        for clock in clocks
        if clock in path.read_text()
    ]
    assert found == []


# Differences that are a span to show, and the size of a varint.
SPANS = {
    ("transactions.py", "now_ms - self.since_ms"),
    ("compaction.py", "at_ms - batch.base_timestamp_ms"),
    ("compaction.py", "at_ms - horizon_ms"),
    ("append.py", "event_ms - append_ms"),  # columns of Spark, which hold microseconds
}


def test_times_are_added_in_one_place() -> None:
    """What decides goes through `ebbtide.moments`, whose sums end at the edge of 64 bits."""
    rooms = ("iceberg", "jobs", "kafka", "layouts", "ledger", "runner", "settings", "state")
    found = {
        (path.name, ast.unparse(node))
        for room in rooms
        for path in (ROOT / "src" / "ebbtide" / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and (_is_time(node.left) or _is_time(node.right))
    }
    assert found == SPANS


def _is_time(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(name.endswith("_ms"))
