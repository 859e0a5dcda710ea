"""Kafka's own log cleaner, retention and DeleteRecords over copies of logs, at given times.

`oracle/` is the Java side: it drives UnifiedLog, LogCleanerManager and Cleaner from Kafka's jars
under a clock that shows what each round says. The copies are thrown away afterwards.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.kafka.broker import java_tool

PROJECT = Path(__file__).resolve().parents[2]
JARS = PROJECT / ".ebbtide" / "kafka-jars"
SOURCES = Path(__file__).parent / "oracle"
MEMORY = "/dev/shm"
CLASSES = PROJECT / ".ebbtide" / "oracle"
JVM_OPTIONS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # thousands of little logs: compiling costs more than it saves
    "-ea",
    # A log that crashed says so loudly; each of these logs looks like one.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)

Picked = Literal["dirty", "idle", "none"]


class OracleError(Exception):
    """The Java side failed, or Kafka refused a log or a round."""


@dataclass(frozen=True, slots=True)
class GrownSegment:
    """What was appended to a segment of the source, or a segment that it began."""

    base_offset: int
    modified_ms: int
    bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What happens at one time, in this order: the log grows, config, producers expire,
    DeleteRecords, cleaning, retention.

    `delete_records` is an offset, -1 the high watermark; cleanup.policy is not asked. An idle round
    (allowed by `idle`, done without a reason too with `force_idle`) happens only where Kafka does
    not pick the log: its cleanSegments with a map that supersedes nothing.
    """

    now_ms: int
    config: Mapping[str, str] = field(default_factory=dict)
    delete_records: int | None = None
    idle: bool = True
    force_idle: bool = False
    retention: bool = False
    grown: Sequence[GrownSegment] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLog:
    """One partition's directory (`<topic>-<partition>`), which is copied, and its rounds.

    `config` holds Kafka's topic settings, and `producer.id.expiration.ms` if it is not a day.
    `modified_ms` are file times by base offset; a segment without one keeps its file's.
    """

    directory: Path
    config: Mapping[str, str]
    rounds: Sequence[Round]
    first_dirty_offset: int | None = None
    log_start_offset: int = 0
    high_watermark: int | None = None
    modified_ms: Mapping[int, int] = field(default_factory=dict)
    with_records: bool = True


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file; `largest_timestamp_ms` is its file time where no record has a timestamp."""

    base_offset: int
    last_modified_ms: int
    size_bytes: int
    largest_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch's header; the last four are None before magic 2.

    `base_timestamp_ms` is the raw field, so the delete horizon where there is one.
    """

    base_offset: int
    last_offset: int
    magic: int
    compression: str
    is_transactional: bool
    is_control: bool
    control_type: str | None
    timestamp_type: str
    delete_horizon_ms: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    max_timestamp_ms: int
    size_bytes: int
    attributes: int | None
    base_timestamp_ms: int | None
    crc: int | None
    record_count: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """A record, a marker's control record included; `batch` is its batch's base offset."""

    offset: int
    batch: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    attributes: int
    is_control: bool


@dataclass(frozen=True, slots=True)
class Producer:
    """What the log remembers of an unexpired producer."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int | None


@dataclass(frozen=True, slots=True)
class LogState:
    """A log after a round; `first_uncleanable_offset` is the round's bound, -1 before any round.

    `first_dirty_offset` is the cleaner's checkpoint, the log start offset where there is none.
    What lies below the log start offset in a segment that is still there is included.
    `cleaned_batches` are those between cleaning and retention; none where retention is not asked.
    """

    picked: Picked
    first_dirty_offset: int
    first_uncleanable_offset: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    segments: tuple[Segment, ...]
    batches: tuple[Batch, ...]
    records: tuple[Record, ...]
    producers: tuple[Producer, ...]
    cleaned_batches: tuple[Batch, ...] = ()

    def aborted_batches(self) -> set[int]:
        """Base offsets of the data batches whose transaction's marker says ABORT."""
        pending: dict[int, list[int]] = {}
        aborted: set[int] = set()
        for batch in self.batches:
            if batch.is_control:
                ended = pending.pop(batch.producer_id, [])
                aborted.update(ended if batch.control_type == "ABORT" else ())
            elif batch.is_transactional:
                pending.setdefault(batch.producer_id, []).append(batch.base_offset)
        return aborted


@dataclass(frozen=True, slots=True)
class OracleResult:
    """A log as Kafka loads it, and after each of its rounds."""

    initial: LogState
    rounds: tuple[LogState, ...]


def run_oracle(logs: Sequence[SourceLog], jars_dir: Path = JARS) -> list[OracleResult]:
    """The result of each log, in order; one JVM does them all."""
    return list(iterate_oracle(logs, jars_dir))


def iterate_oracle(logs: Sequence[SourceLog], jars_dir: Path = JARS) -> Iterator[OracleResult]:
    """As `run_oracle`, but each result as soon as it is there; its copy is then removed."""
    for result in try_oracle(logs, jars_dir):
        if isinstance(result, OracleError):
            raise result
        yield result


def try_oracle(
    logs: Sequence[SourceLog], jars_dir: Path = JARS
) -> Iterator[OracleResult | OracleError]:
    """As `iterate_oracle`, but a log that Kafka fails on is an error among the results."""
    classes = compiled_classes(jars_dir)
    with (
        tempfile.TemporaryDirectory(prefix="oracle-", dir=scratch_root(logs)) as scratch,
        closing(oracle_lines(logs, classes, jars_dir, Path(scratch))) as lines,
    ):
        for number, log in enumerate(logs):
            yield result_of(log, lines)
            shutil.rmtree(Path(scratch, str(number)))


def result_of(log: SourceLog, lines: Iterator[dict[str, Any]]) -> OracleResult | OracleError:
    """The states of one log up to the line that says that its files are closed."""
    states: list[LogState] = []
    for answer in lines:
        if "error" in answer:
            return OracleError(f"Kafka failed on {log.directory}: {answer['error']}")
        if "closed" in answer:
            break
        states.append(parsed_state(answer))
    return OracleResult(initial=states[0], rounds=tuple(states[1:]))


def manifest_logs(log_directory: Path, rounds: Sequence[Round]) -> list[SourceLog]:
    """Every partition of a directory with a manifest, with its config and file times."""
    manifest = json.loads((log_directory / "ebbtide-manifest.json").read_text())
    modified_ms: dict[str, dict[int, int]] = {}
    for name, facts in sorted(manifest["files"].items()):
        directory, _, file = name.partition("/")
        modified_ms.setdefault(directory, {})[int(Path(file).stem)] = facts["modified_ms"]
    return [
        SourceLog(
            directory=log_directory / directory,
            config=manifest["topics"][directory.rpartition("-")[0]]["config"],
            rounds=rounds,
            modified_ms=times,
        )
        for directory, times in modified_ms.items()
    ]


def compiled_classes(jars_dir: Path) -> Path:
    """Where the compiled Java side is; compiled first if its sources or the jars changed."""
    sources = sorted(SOURCES.glob("*.java"))
    jars = "".join(sorted(jar.name for jar in jars_dir.glob("*.jar")))
    if not jars:
        raise OracleError(
            f"no Kafka jars in {jars_dir}: run conf/ivy/resolve_jars.py kafka {jars_dir}"
        )
    digest = hashlib.sha256(jars.encode() + b"".join(path.read_bytes() for path in sources))
    classes = CLASSES / digest.hexdigest()[:16]
    if not classes.exists():
        CLASSES.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=CLASSES)
        command = [java_tool("javac"), "-d", fresh, "-cp", f"{jars_dir}/*", *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise OracleError(f"compiling {SOURCES} failed: {done.stderr}")
        with suppress(OSError):  # another process was first
            os.rename(fresh, classes)
    return classes


def scratch_root(logs: Sequence[SourceLog]) -> str | None:
    """Memory if it is plenty, since Kafka syncs each file it writes; else the usual place."""
    size_bytes = sum(path.stat().st_size for log in logs for path in log.directory.glob("*.log"))
    if not os.access(MEMORY, os.W_OK):
        return None
    is_plenty = shutil.disk_usage(MEMORY).free > max(2**29, 10 * size_bytes)
    return MEMORY if is_plenty else None


def oracle_lines(
    logs: Sequence[SourceLog], classes: Path, jars_dir: Path, scratch: Path
) -> Generator[dict[str, Any], None, None]:
    """The Java side's answers: each log's states, then one that its files are closed."""
    requests = scratch / "requests.jsonl"
    with requests.open("w") as lines:
        for number, log in enumerate(logs):
            lines.write(json.dumps(request_of(log, str(number), scratch / str(number))) + "\n")
    classpath = os.pathsep.join([str(classes), f"{jars_dir}/*"])
    command = [java_tool("java"), *JVM_OPTIONS, "-cp", classpath, "CleanerOracle"]
    with (
        requests.open() as asked,
        (scratch / "errors").open("w+") as errors,
        subprocess.Popen(command, stdin=asked, stdout=subprocess.PIPE, stderr=errors) as java,
    ):
        try:
            assert java.stdout is not None
            yield from map(json.loads, java.stdout)
            status = java.wait()
            errors.seek(0)
            raise OracleError(f"java ended early with status {status}: {errors.read()[-4000:]}")
        finally:
            java.kill()


def request_of(log: SourceLog, number: str, scratch: Path) -> dict[str, Any]:
    """The request for one log, whose segment files are copied to `scratch`."""
    copy = scratch / log.directory.name
    copy.mkdir(parents=True)
    for path in log.directory.glob("*.log"):
        shutil.copy2(path, copy / path.name)
    return {
        "id": number,
        "directory": str(copy),
        "config": dict(log.config),
        "first_dirty_offset": log.first_dirty_offset,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "modified_ms": {str(offset): time_ms for offset, time_ms in log.modified_ms.items()},
        "with_records": log.with_records,
        "rounds": [round_request(a_round) for a_round in log.rounds],
    }


def round_request(a_round: Round) -> dict[str, Any]:
    """The request for one round."""
    grown = [
        {
            "base_offset": segment.base_offset,
            "modified_ms": segment.modified_ms,
            "bytes": base64.b64encode(segment.bytes).decode(),
        }
        for segment in a_round.grown
    ]
    return {
        "now_ms": a_round.now_ms,
        "config": dict(a_round.config),
        "delete_records": a_round.delete_records,
        "idle": a_round.idle,
        "force_idle": a_round.force_idle,
        "retention": a_round.retention,
        "grown": grown or None,
    }


def parsed_state(answer: Mapping[str, Any]) -> LogState:
    """A log's state from one line of the Java side."""
    return LogState(
        picked=answer["picked"],
        first_dirty_offset=answer["first_dirty_offset"],
        first_uncleanable_offset=answer["first_uncleanable_offset"],
        log_start_offset=answer["log_start_offset"],
        log_end_offset=answer["log_end_offset"],
        last_stable_offset=answer["last_stable_offset"],
        segments=tuple(Segment(**segment) for segment in answer["segments"]),
        batches=tuple(Batch(**batch) for batch in answer["batches"]),
        records=tuple(parsed_record(record) for record in answer["records"]),
        producers=tuple(Producer(**producer) for producer in answer["producers"]),
        cleaned_batches=tuple(Batch(**batch) for batch in answer["cleaned_batches"]),
    )


def parsed_record(record: dict[str, Any]) -> Record:
    """A record with its bytes decoded."""
    headers = tuple((name, decoded(value)) for name, value in record.pop("headers"))
    key, value = decoded(record.pop("key")), decoded(record.pop("value"))
    return Record(key=key, value=value, headers=headers, **record)


def decoded(text: str | None) -> bytes | None:
    """Base64, null kept."""
    return None if text is None else base64.b64decode(text)
