"""Where the time of a run of tests went, by file, and which files are begun first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

SHOWN = 10
# Two processes take a file at a time: one that is long and begun last leaves the other idle.
BEGUN_FIRST = (
    "tests/nights/test_fuzz.py",
    "tests/chaos/test_chaos.py",
    "tests/stages/replicate_log/test_replicas_of_random_logs.py",
    "tests/stages/replicate_log/test_replicate_log.py",
    "tests/stages/replicate_log/test_killed_replications.py",
    "tests/stages/erase_keys/test_killed_erasures.py",
    "tests/stages/erase_keys/test_erase_keys.py",
    "tests/jobs/test_kill_9.py",
    "tests/stages/clean_log/test_other_tools.py",
    "tests/stages/test_unfinished.py",
    "tests/stages/ingest_topic/test_ingest_topic.py",
    "tests/nights/test_changed_tables.py",
    "tests/stages/repair_state/test_repair.py",
    "tests/iceberg/test_views.py",
    "tests/dags/test_real_spark.py",
    "tests/nights/test_reported_numbers.py",
)


def slowest_files(tests: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The files that took longest and their seconds, from (node id, seconds) of each phase."""
    seconds: dict[str, float] = defaultdict(float)
    for node_id, taken in tests:
        seconds[node_id.partition("::")[0]] += taken
    return sorted(seconds.items(), key=lambda file: -file[1])[:SHOWN]


def begun_at(node_id: str) -> int:
    """Where a test's file stands in the order of files: the longest first, then as collected."""
    file = node_id.partition("::")[0]
    return BEGUN_FIRST.index(file) if file in BEGUN_FIRST else len(BEGUN_FIRST)
