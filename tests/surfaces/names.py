"""Names and values that tables, settings, metrics and other programs hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.work_tags import WorkTag
from ebbtide.orchestration import monitoring
from ebbtide.settings.config import SETTINGS, WITHOUT_EFFECT, default_text, parse_config
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import DEFAULT_MAX_SNAPSHOT_AGE_MS, MAX_SNAPSHOT_AGE
from tests.lake_sandbox import ROOT

# Values that tables and documents hold: enumerations, tuples and texts of the product.
VALUES = {
    "approval decision": "ebbtide.orchestration.approval:Decision",
    "erasure status": "ebbtide.ledger.own_tables:LOGGED,REPORTED",
    "erasure way": "ebbtide.specs.erase_request:Way",
    "hold action": "ebbtide.specs.hold_request:Action",
    "hold event": "ebbtide.ledger.holds:HoldEvent",
    "hold kind": "ebbtide.ledger.holds:Kind",
    "isolation": "ebbtide.kafka.live_offsets:Isolation",
    "key encoding": "ebbtide.specs.erase_request:Encoding",
    "notice": "ebbtide.orchestration.monitoring:NoticeKind",
    "plan event": "ebbtide.ledger.plans:PlanStep",
    "plan status": "ebbtide.ledger.plans:Standing",
    "quarantine reason": "ebbtide.jobs.quarantine:UNMARKED_NULL_VALUE",
    "retention rule": "ebbtide.kafka.retention:Rule",
    "tombstone_by": "ebbtide.jobs.mark_tombstones:REASONS",
}
# Enumerations whose members are shown by name.
NAMES = {
    "DeleteRecords error": "ebbtide.kafka.low_watermarks:ErrorCode",
    "fate": "ebbtide.lake.key_records:Fate",
}
# Named by pyiceberg's settings, Airflow's database, Makefile, the console script and Spark.
LOADED_BY_NAME = """
    ebbtide.commands.__main__:console ebbtide.lake.file_io:SparksFileIO ebbtide.local.quickstart
    ebbtide.local.serve ebbtide.orchestration.approval ebbtide.orchestration.pool
    ebbtide.orchestration.operator:EbbtideJobOperator ebbtide.orchestration.several_runs
    ebbtide.orchestration.timetable:NextTickTimetable ebbtide.spark.tasks:TaskFailure
""".split()
# Quoted in the sources: settings, properties, summaries, headers, assets; then more names there.
QUOTED = re.compile(r"""["'](ebbtide[.:][a-z/][a-z._/-]*)["']""")
MODULES = ("ebbtide.orchestration", "ebbtide.lake", "ebbtide.local")
VARIABLE = re.compile(r"\bEBBTIDE_[A-Z_]*[A-Z]\b")
SPARK_SETTING = re.compile(r"\bspark\.ebbtide\.[a-z.]*[a-z]\b")
TAGGED_WORK = re.compile(r"""\bWorkTag\(\s*["']([a-z]+)["']""")
# A setting is tried with each.
PROBES = """
    x -2 -1 0 1 0.5 2 1048576 2147483648 9223372036854775808 31536000001 true compact
    compact,delete any all segment record timestamp header:h sql:value h=v CreateTime LogAppendTime
    lake.copy kafka:c segments:/log table:raw.t
""".split()


def collect() -> dict[str, Any]:
    """Return all names."""
    sources = [text for folder in ("src", "dags", "jobs", "plugins") for text in texts(folder)]
    tags = [WorkTag(kind, "<id>") for kind in found(TAGGED_WORK, sources)]
    constants = {name: str(value) for name, value in vars(monitoring).items() if name.isupper()}
    age = {MAX_SNAPSHOT_AGE: f"default {DEFAULT_MAX_SNAPSHOT_AGE_MS}"}
    return {
        "settings": {name: setting(name) for name in SETTINGS} | age,
        "settings without effect": sorted(WITHOUT_EFFECT),
        "takes settings that nobody knows": takes("kafka.unknown", "1"),
        "tables": {name: tables(name) for name in ("log.a", "raw.t@a", "other:log.a")},
        "quoted": [name for name in found(QUOTED, sources) if not name.startswith(MODULES)],
        "environment": found(VARIABLE, [*sources, *texts("conf", "*")]),
        "spark settings": found(SPARK_SETTING, sources),
        "commit steps in order": [str(step) for step in Step],
        "tags": sorted(name for tag in tags for name in (tag.own, tag.before)),
        "metrics": sorted(text for text in constants.values() if re.match(r"ebbtide\.\w", text)),
        "tags of metrics": sorted(monitoring.tags_of("log.a")),
        "values": {what: sorted(values(path)) for what, path in VALUES.items()},
        "names": {what: sorted(loaded(path).__members__) for what, path in NAMES.items()},
        "loaded by name": [path for path in LOADED_BY_NAME if loads(path)],
    }


def texts(folder: str, pattern: str = "*.py") -> Iterator[str]:
    for file in (ROOT / folder).rglob(pattern):
        if file.is_file() and file.suffix != ".pyc":
            yield file.read_text(encoding="utf-8")


def found(pattern: re.Pattern[str], sources: Iterable[str]) -> list[str]:
    return sorted({name for text in sources for name in pattern.findall(text)})


def setting(name: str) -> str:
    taken = [probe for probe in PROBES if takes(name, probe)]
    any_of = "any text" if taken == PROBES else " | ".join(taken)
    return f"default {default_text(SETTINGS[name].field)}, takes {any_of}"


def takes(name: str, text: str) -> bool:
    try:
        parse_config({name: text})
    except ConfigurationError:
        return False
    return True


def tables(name: str) -> list[str]:
    """Return the SQL identifiers of a topic's tables and views."""
    names = {part for part in vars(TopicName) if part.endswith(("_table", "_view"))}
    topic = TopicName.parse(name)
    return [getattr(topic, part) for part in sorted(names - {"in_table", "whole_table"})]


def values(path: str) -> Iterator[str]:
    module, _, listed = path.partition(":")
    for value in (loaded(f"{module}:{name}") for name in listed.split(",")):
        yield from [value] if isinstance(value, str) else map(str, value)


def loads(path: str) -> bool:
    try:
        return loaded(path) is not None
    except (ImportError, AttributeError):
        return False


def loaded(path: str) -> Any:
    """Return a module, or what is behind the colon in it."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)
