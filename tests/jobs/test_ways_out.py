"""Each error of docs/troubleshooting.md that names a way out: the way is walked on what raised it.

Jobs run by their command lines. The errors that a service raises are walked where the service is
at hand; WALKED_ELSEWHERE names those tests.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import (
    ConfigurationError,
    CorruptSegmentError,
    EbbtideError,
    ExitCode,
    ForeignChangeError,
    ForeignLogError,
    HoldError,
    NotCoveredError,
    OffsetGapError,
    OversizedBatchError,
    PlanError,
    PlanExceededError,
    SafetyError,
    SourceError,
    StateError,
    UnfinishedWorkError,
    UnknownTopicError,
    UnreadableTableError,
)
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.lake.reader import open_lake
from ebbtide.ledger import holds
from ebbtide.records.compression import Codec
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.erase_request import KEYS as ERASED
from jobs import (
    abandon_table,
    adopt_table,
    certify_erasure,
    clean_log,
    configure_topic,
    delete_records,
    erase_keys,
    expire_segments,
    expire_snapshots,
    export_segments,
    hold_records,
    ingest_segments,
    ingest_table,
    mark_tombstones,
    repair_state,
    replicate_log,
    undo_run,
)
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.tables.adopted import Record, append, spark_table
from tests.tables.counted import assert_counted
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, at, set_properties
from tests.tables.partition_log import batch
from tests.tables.planned import Jobs

HOLDS = holds.HOLDS.in_catalog()
NOW_MS = FIRST_MS + 10 * DAY_MS
NOW = ("--now", at(NOW_MS).isoformat())
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]
COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
ASKED = ("--requested-by", "ann", "--reason", "17", "--append")
# Each offset of the log.
ALL = list(range(8))
# Errors that no state of a topic raises: of a request, or an address.
WITHOUT_A_STATE = {"RequestError", "MissingPageError"}
_ON_A_STORE = (
    "tests/stores/test_faulty_store.py"
    "::test_a_job_says_what_a_store_refuses_and_the_next_one_ends_it"
)
WALKED_ELSEWHERE = {
    "CommitConflictError": "tests/jobs/ingest_segments/test_ingest_segments.py"
    "::test_of_two_ingests_at_a_time_one_fails_and_each_record_is_there_once",
    "NotCoveredError": "tests/jobs/ingest_topic/test_killed_and_mixed_ingests.py"
    "::test_a_table_that_waits_for_the_end_of_a_transaction_is_refused",
    "UnavailableError": _ON_A_STORE,
    "AccessDeniedError": _ON_A_STORE,
}
WALKED: dict[str, list[str]] = {}


@dataclass
class Case:
    """A topic in a lake, the log that it is ingested from, and the jobs."""

    sandbox: LakeSandbox
    jobs: Jobs
    name: TopicName
    log: Path
    kill_at: list[Step]

    @property
    def spark(self) -> SparkSession:
        return self.sandbox.session

    def segment(self, base_offset: int) -> Path:
        return self.log / "t-0" / f"{base_offset:020}.log"

    def write(self, config: dict[str, str] | None = None) -> None:
        shutil.rmtree(self.log, ignore_errors=True)
        write_log(self.log, "t", MESSAGES, config or {"cleanup.policy": "delete"})

    def ingest(self, *more: str, cluster: str | None = None) -> int:
        where = ("--source", str(self.log), "--cluster", cluster or self.name.cluster)
        topic = f"{cluster or self.name.cluster}.t"
        return self.jobs.run(ingest_segments, *where, "--topic", topic, *NOW, *more)

    def run(self, job: ModuleType, *more: str) -> int:
        return self.jobs.run(job, "--topic", str(self.name), *NOW, *more)

    def delete(self, offset: int, *more: str) -> int:
        return self.jobs.run(delete_records, *self.request(offset), *NOW, *more)

    def request(self, offset: int) -> tuple[str, str]:
        asked = {"topic": str(self.name), "partitions": [{"partition": 0, "offset": offset}]}
        return "--request", json.dumps({"topics": [asked]})

    def configure(self, *changes: str) -> None:
        words = [word for change in changes for word in ("--set", change)]
        assert self.run(configure_topic, *words) == ExitCode.DONE

    def without_source(self) -> None:
        """Let tombstones be appended, which a source that gives offsets forbids."""
        assert self.run(configure_topic, "--unset", "ebbtide.source") == ExitCode.DONE

    def refused(self, code: int, error: type[EbbtideError], says: str) -> None:
        """Check the last run's row: its error, and the way out that it names."""
        row = self.jobs.last_run()
        assert (row.error_class, code) == (
            error.__name__,
            ExitCode.TRANSIENT if error.transient else ExitCode.FAILED,
        ), row.error
        assert re.search(says, row.error), row.error

    def left(self, name: TopicName | None = None) -> list[int]:
        return offsets(view_of_table(self.spark, name or self.name, 0))

    def is_well(self, left: list[int]) -> None:
        """Check that the topic has these offsets and that its jobs run again."""
        assert self.left() == left
        assert_counted(self.spark, self.name)
        for job in (mark_tombstones, clean_log):
            assert self.run(job) == ExitCode.DONE, self.jobs.last_run().error


Walk = Callable[[Case], None]


@pytest.fixture
def case(
    sandbox: LakeSandbox, jobs: Jobs, cluster: str, tmp_path: Path, kill_at: list[Step]
) -> Case:
    case = Case(sandbox, jobs, TopicName(cluster[-30:], "t"), tmp_path / "log", kill_at)
    case.write()
    return case


def walks(*errors: type[EbbtideError]) -> Callable[[Walk], Walk]:
    """Note that the test walks the ways out of these errors, and leave it out of `make test`."""

    def noted(test: Walk) -> Walk:
        for error in errors:
            WALKED.setdefault(error.__name__, []).append(test.__name__)
        return pytest.mark.long(test)

    return noted


def test_each_error_of_the_docs_has_its_way_walked() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text()
    documented = set(re.findall(r"^\| `(\w+Error)` \|", table, re.MULTILINE))
    assert documented == {*WITHOUT_A_STATE, *WALKED, *WALKED_ELSEWHERE}
    for node_id in WALKED_ELSEWHERE.values():
        file, _, test = node_id.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@walks(CorruptSegmentError)
def test_a_corrupt_segment_is_copied_again(case: Case) -> None:
    right = case.segment(4).read_bytes()
    case.segment(4).write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    case.refused(case.ingest(), CorruptSegmentError, "Copy the file again")
    case.segment(4).write_bytes(right)
    assert case.ingest() == ExitCode.DONE
    case.is_well(ALL)


@dataclass(frozen=True)
class Fault:
    """What is wrong in a log directory, what the error advises, and that being done.

    `left` are the offsets that the topic has then. If the whole source `is_refused`, no topic is
    begun, and the log has the error.
    """

    harm: Callable[[Case], object]
    says: str
    mend: Callable[[Case], object]
    left: list[int] = field(default_factory=lambda: ALL)
    is_refused: bool = False


def link_to_nothing(case: Case) -> None:
    """A disk that is not mounted."""
    elsewhere = case.log.parent / "disk"
    elsewhere.mkdir()
    path = case.segment(6)
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)
    elsewhere.rename(case.log.parent / "unmounted")


def odd_metadata(case: Case, text: str | None) -> None:
    """A FIFO, unless there is a text."""
    path = case.log / "t-0" / "partition.metadata"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)


def copy_metadata(case: Case) -> None:
    """As the broker has it."""
    path = case.log / "t-0" / "partition.metadata"
    path.unlink()
    path.write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ\n")


def note_size(case: Case, size_bytes: int) -> None:
    path = case.log / "ebbtide-manifest.json"
    about = {"modified_ms": FIRST_MS, "size_bytes": size_bytes}
    path.write_text(json.dumps({"files": {f"t-0/{case.segment(6).name}": about}, "topics": {}}))


SOURCE_FAULTS = {
    "files of two times": Fault(
        lambda case: case.segment(3).write_bytes(batch(3, 2)),
        "Copy it again, and delete files from the copy that the broker no longer has",
        lambda case: case.segment(3).unlink(),
    ),
    "link to nothing, mounted": Fault(
        link_to_nothing,
        "Mount or copy that file",
        lambda case: (case.log.parent / "unmounted").rename(case.log.parent / "disk"),
    ),
    "link to nothing, removed": Fault(
        link_to_nothing, "or delete the link", lambda case: case.segment(6).unlink(), [*range(6)]
    ),
    "two directories": Fault(
        lambda case: shutil.copytree(case.log / "t-0", case.log / "t-00"),
        "Remove the directory that is not the partition's",
        lambda case: shutil.rmtree(case.log / "t-00"),
    ),
    "metadata that is a FIFO": Fault(
        lambda case: odd_metadata(case, None), "found a FIFO. Copy the file again", copy_metadata
    ),
    "metadata without a topic id": Fault(
        lambda case: odd_metadata(case, "version: 0\n"), "Copy it again", copy_metadata
    ),
    "metadata of another form": Fault(
        lambda case: odd_metadata(case, "x\n"), "Copy the file again", copy_metadata
    ),
    "file of another size than its manifest says": Fault(
        lambda case: note_size(case, 7),
        "Copy the file again, or write the manifest again",
        lambda case: note_size(case, case.segment(6).stat().st_size),
    ),
    "manifest of another form": Fault(
        lambda case: (case.log / "ebbtide-manifest.json").write_text("[]"),
        "Write it again",
        lambda case: (case.log / "ebbtide-manifest.json").write_text("{}"),
        is_refused=True,
    ),
    "checkpoint of another form": Fault(
        lambda case: (case.log / "replication-offset-checkpoint").write_text("0\n1\nt 0\n"),
        "Copy the file again",
        lambda case: (case.log / "replication-offset-checkpoint").write_text("0\n1\nt 0 8\n"),
        is_refused=True,
    ),
    "no directory": Fault(
        lambda case: case.log.rename(case.log.parent / "log2"),
        "Check --source",
        lambda case: (case.log.parent / "log2").rename(case.log),
        is_refused=True,
    ),
}


@walks(SourceError)
@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_a_source_is_mended_as_its_error_says(
    case: Case, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = SOURCE_FAULTS[fault]
    found.harm(case)
    code = case.ingest()
    if found.is_refused:
        assert code == ExitCode.REFUSED
        assert re.search(f"refused: SourceError: .*{found.says}", caplog.text)
    else:
        case.refused(code, SourceError, found.says)
    found.mend(case)
    assert case.ingest() == ExitCode.DONE, case.jobs.last_run().error
    case.is_well(found.left)


@walks(OversizedBatchError)
def test_the_setting_for_large_batches_is_raised(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    setting = "ebbtide.max.decompressed.batch.bytes"
    case.configure(f"{setting}=1000")
    case.segment(8).write_bytes(batch(8, 100, codec=Codec.ZSTD))
    case.refused(case.ingest(), OversizedBatchError, f"Set {setting} higher")
    case.configure(f"{setting}=1000000")
    assert case.ingest() == ExitCode.DONE
    case.is_well(list(range(108)))


@walks(ForeignLogError)
def test_another_log_is_ingested_under_another_cluster_or_begun_anew(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    shutil.rmtree(case.log)
    write_log(case.log, "t", MESSAGES[:1], {"cleanup.policy": "delete"})
    says = "under another cluster name, or drop the topic's tables and ingest it again"
    case.refused(case.ingest(), ForeignLogError, says)
    other = f"{case.name.cluster}_b"
    assert case.ingest(cluster=other) == ExitCode.DONE
    assert case.left(TopicName(other, "t")) == [0, 1]
    for table in (case.name.records_table, case.name.batches_table, case.name.state_table):
        case.spark.sql(f"DROP TABLE {table} PURGE")
    assert case.ingest() == ExitCode.DONE
    case.is_well([0, 1])


@walks(OffsetGapError)
@pytest.mark.parametrize("way", ["accept the gap", "a new topic is compacted", "a topic is"])
def test_missing_offsets_are_accepted_or_explained(case: Case, way: str) -> None:
    if way == "a topic is":
        for base_offset in (2, 4, 6):
            case.segment(base_offset).unlink()
        assert case.ingest() == ExitCode.DONE
        case.write()
    case.segment(2).unlink()
    says = (
        "with --set of this job for a new topic, else with configure_topic. To accept the gap, run"
    )
    case.refused(case.ingest(), OffsetGapError, says)
    compacted = "kafka.cleanup.policy=compact"
    if way == "accept the gap":
        assert case.ingest("--accept-gap") == ExitCode.DONE
    elif way == "a new topic is compacted":
        assert case.ingest("--set", compacted) == ExitCode.DONE
    else:
        case.configure(compacted)
        assert case.ingest() == ExitCode.DONE
    case.is_well([0, 1, 4, 5, 6, 7])


@walks(ConfigurationError)
def test_a_setting_is_corrected(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    case.spark.sql(
        f"ALTER TABLE {case.name.records_table} SET TBLPROPERTIES ('kafka.retention.ms' = 'abc')"
    )
    case.refused(case.run(expire_segments), ConfigurationError, r"retention\.ms")
    case.configure("kafka.retention.ms=-1")
    case.is_well(ALL)


@walks(UnknownTopicError)
def test_an_unknown_topic_is_ingested_first(case: Case) -> None:
    case.refused(case.run(mark_tombstones), UnknownTopicError, "Ingest the topic first")
    assert case.ingest() == ExitCode.DONE
    case.is_well(ALL)


@walks(StateError)
def test_an_edited_state_is_rebuilt(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    case.spark.sql(
        f"ALTER TABLE {case.name.state_table} SET TBLPROPERTIES "
        "('ebbtide.state.0.log-end-offset' = '3')"
    )
    case.refused(case.run(mark_tombstones), StateError, "repair_state")
    assert case.run(repair_state, "--keep-changes") == ExitCode.DONE
    case.is_well(ALL)


@walks(StateError)
def test_a_dropped_state_is_rebuilt(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    case.spark.sql(f"DROP TABLE {case.name.state_table}")
    case.refused(
        case.run(mark_tombstones), StateError, "Run repair_state, which rebuilds the state"
    )
    assert case.run(repair_state, "--keep-changes") == ExitCode.DONE
    case.is_well(ALL)


@walks(StateError)
def test_each_job_names_the_way_out_of_a_state_that_it_cannot_read(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As version 33418e1 sealed it for `retention.ms` of 2^63-1."""
    assert case.ingest() == ExitCode.DONE
    assert case.delete(3) == ExitCode.DONE
    case.without_source()
    clock = {"ebbtide.state.0.next-expiry-ms": str(2**63)}
    set_properties(case.spark, str(case.name), clock)
    monkeypatch.setenv(ERASED, "a")
    topic = ("--topic", str(case.name))
    hold = ("--case-id", "7", "--reason", "asked", "--owner", "legal", "--requested-by", "ann")
    arguments: dict[ModuleType, tuple[str, ...]] = {
        ingest_segments: (*topic, "--source", str(case.log), "--cluster", case.name.cluster),
        ingest_table: (*topic, "--source", "log.others"),
        mark_tombstones: topic,
        clean_log: topic,
        expire_segments: topic,
        delete_records: case.request(5),
        replicate_log: topic,
        expire_snapshots: topic,
        erase_keys: (*topic, *ASKED),
        certify_erasure: topic,
        export_segments: (*topic, "--target", str(tmp_path / "export")),
        configure_topic: (*topic, "--set", "kafka.retention.ms=-1"),
        hold_records: (*topic, "--action", "make", *hold),
        undo_run: (*topic, "--run", "x"),
    }
    # ingest_topic asks a broker for its topics before it loads one as the others do.
    others = {"repair_state", "adopt_table", "abandon_table", "ingest_topic"}
    assert {job.__name__.removeprefix("jobs.") for job in arguments} == SPECS.keys() - others
    for job, words in arguments.items():
        code = case.jobs.run(job, *words, *NOW)
        case.refused(code, StateError, r"next-expiry-ms.*\. repair_state rebuilds the state")
    assert case.run(repair_state) == ExitCode.DONE
    case.is_well([3, 4, 5, 6, 7])


@walks(StateError)
def test_an_adopted_table_whose_state_cannot_be_read_is_adopted_again(case: Case) -> None:
    spark, name = case.spark, TopicName(case.name.cluster, "adopted")
    spark_table(spark, str(name))
    append(spark, str(name), [Record(n, "k") for n in range(3)])
    topic = ("--topic", str(name), *NOW)
    assert case.jobs.run(adopt_table, *topic) == ExitCode.DONE
    set_properties(spark, str(name), {"ebbtide.state.0.next-expiry-ms": str(2**63)})
    case.refused(case.jobs.run(expire_segments, *topic), StateError, "repair_state")
    says = "run abandon_table, then adopt_table"
    case.refused(case.jobs.run(repair_state, *topic), NotCoveredError, says)
    assert case.jobs.run(abandon_table, *topic) == ExitCode.DONE
    assert case.jobs.run(adopt_table, *topic) == ExitCode.DONE
    assert case.jobs.run(expire_segments, *topic) == ExitCode.DONE, case.jobs.last_run().error
    assert load(spark, name).partitions[0].log_end_offset == 3


@walks(ForeignChangeError)
def test_rows_that_others_removed_are_brought_back(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    case.spark.sql(f"DELETE FROM {case.name.records_table} WHERE offset = 5")
    case.refused(case.run(mark_tombstones), ForeignChangeError, "repair_state")
    assert case.run(repair_state) == ExitCode.DONE
    case.is_well(ALL)


@walks(ForeignChangeError)
@pytest.mark.parametrize("which", ["records_table", "batches_table"])
def test_a_dropped_table_is_registered_again(case: Case, which: str) -> None:
    assert case.ingest() == ExitCode.DONE
    table = getattr(case.name, which)
    where = java_table(case.spark, table).operations().current().metadataFileLocation()
    case.spark.sql(f"DROP TABLE {table}")
    says = "Register its last metadata file again"
    case.refused(case.run(mark_tombstones), ForeignChangeError, says)
    plain = table.replace("`", "").removeprefix("lake.")
    case.spark.sql(
        f"CALL lake.system.register_table(table => '{plain}', metadata_file => '{where}')"
    )
    case.is_well(ALL)


@walks(UnreadableTableError)
def test_a_metadata_file_is_restored(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    table = java_table(case.spark, case.name.records_table)
    where = Path(str(table.operations().current().metadataFileLocation()).removeprefix("file:"))
    right = where.read_bytes()
    where.write_bytes(b"{")
    with open_lake() as lake, pytest.raises(UnreadableTableError, match="Restore its metadata"):
        lake.topic(str(case.name))
    where.write_bytes(right)
    case.is_well(ALL)


@walks(UnfinishedWorkError)
def test_a_killed_ingest_is_run_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.write(COMPACT)
    assert case.ingest() == ExitCode.DONE
    case.segment(8).write_bytes(batch_of([Message("c", "1", 4 * DAY_MS)], 8))
    case.kill_at.append(Step.INGEST_BATCHES)
    assert case.ingest() != ExitCode.DONE
    says = "ingest_segments is running or was killed"
    case.without_source()
    monkeypatch.setenv(ERASED, "a")
    case.refused(case.run(erase_keys, *ASKED), UnfinishedWorkError, says)
    assert case.ingest() == ExitCode.DONE
    case.is_well([*ALL, 8])


@walks(UnfinishedWorkError)
@pytest.mark.parametrize("step", [Step.INGEST_BATCHES, Step.INGEST_STATE])
def test_what_an_ingest_left_whose_log_is_gone_is_taken_out(
    case: Case, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    case.write(COMPACT)
    assert case.ingest() == ExitCode.DONE
    case.segment(8).write_bytes(batch_of([Message("c", "1", 4 * DAY_MS)], 8))
    case.kill_at.append(step)
    assert case.ingest() != ExitCode.DONE
    shutil.rmtree(case.log)
    case.without_source()
    monkeypatch.setenv(ERASED, "a")
    says = "If ingest_segments can no longer run, repair_state with keep_changes"
    case.refused(case.run(erase_keys, *ASKED), UnfinishedWorkError, says)
    assert case.run(repair_state) == ExitCode.DONE
    assert "keep_changes also looks for duplicate rows" in case.jobs.last_run().topic_result["note"]
    assert case.run(repair_state, "--keep-changes") == ExitCode.DONE
    case.is_well(ALL)
    assert case.run(erase_keys, *ASKED) == ExitCode.DONE, case.jobs.last_run().error


@walks(SafetyError)
@pytest.mark.parametrize("way", ["approve", "change the setting"])
def test_what_a_guard_stopped_is_approved_or_allowed(case: Case, way: str) -> None:
    assert case.ingest() == ExitCode.DONE
    case.configure(f"kafka.retention.ms={int(7.5 * DAY_MS)}", "ebbtide.max.delete.ratio=0.1")
    case.refused(case.run(expire_segments), SafetyError, "ebbtide.max.delete.ratio")
    (kept,) = case.jobs.plans(run_id=case.jobs.run_id)
    assert kept.plan_id in case.jobs.last_run().error
    if way == "approve":
        approved = ("--plan", kept.plan_id, "--approved-by", "bob")
        assert case.jobs.run(expire_segments, *approved) == ExitCode.DONE
    else:
        case.configure("ebbtide.max.delete.ratio=1")
        assert case.run(expire_segments) == ExitCode.DONE
    case.is_well([6, 7])


@walks(PlanError)
def test_a_plan_that_is_used_up_is_made_anew(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    kept = case.jobs.plan(delete_records, NOW_MS, *case.request(3))
    assert case.jobs.run(delete_records, "--plan", kept.plan_id) == ExitCode.DONE
    code = case.jobs.run(delete_records, "--plan", kept.plan_id)
    case.refused(code, PlanError, "Make a new plan")
    anew = case.jobs.plan(delete_records, NOW_MS, *case.request(5))
    assert case.jobs.run(delete_records, "--plan", anew.plan_id) == ExitCode.DONE
    case.is_well([5, 6, 7])


@walks(PlanExceededError)
def test_a_plan_of_less_is_made_anew(case: Case) -> None:
    assert case.ingest() == ExitCode.DONE
    by_event_time = "kafka.retention.max.eventtime.ms"
    case.configure(f"{by_event_time}={int(1.5 * DAY_MS)}", "ebbtide.max.delete.ratio=1")
    of_topic = ("--topic", str(case.name))
    kept = case.jobs.plan(expire_segments, NOW_MS, *of_topic)
    tighter = (f"{by_event_time}={int(0.5 * DAY_MS)}", "ebbtide.retention.granularity=record")
    case.configure(*tighter)
    code = case.jobs.run(expire_segments, "--plan", kept.plan_id)
    case.refused(code, PlanExceededError, "[Mm]ake a new plan")
    anew = case.jobs.plan(expire_segments, NOW_MS, *of_topic)
    assert case.jobs.run(expire_segments, "--plan", anew.plan_id) == ExitCode.DONE
    assert case.left() != ALL
    case.is_well(case.left())


@walks(HoldError)
def test_a_hold_is_ended_and_one_that_cannot_be_read_is_replaced(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.write(COMPACT)
    assert case.ingest() == ExitCode.DONE
    case.without_source()
    why = ("--case-id", "7", "--reason", "asked", "--owner", "legal", "--requested-by", "ann")
    held = ("--partition", "0", "--first-offset", "2", "--end-offset", "4")
    assert case.run(hold_records, "--action", "make", *held, *why) == ExitCode.DONE
    monkeypatch.setenv(ERASED, "a")
    case.refused(case.run(erase_keys, *ASKED), HoldError, r"\(case 7\)")
    hold_id = case.spark.table(HOLDS).where(f"topic = '{case.name}'").first()["hold_id"]
    end = ("--topic", str(case.name), "--action", "end", "--hold", hold_id)
    plan = case.jobs.plan(hold_records, NOW_MS, *end)
    approved = ("--plan", plan.plan_id, "--approved-by", "bob")
    assert case.jobs.run(hold_records, *approved) == ExitCode.DONE
    assert case.run(erase_keys, *ASKED) == ExitCode.DONE
    case.spark.sql(f"UPDATE {HOLDS} SET event = 'nonsense' WHERE hold_id = '{hold_id}'")
    accept_what_is_gone(case)
    case.refused(case.delete(2), HoldError, "delete this one and accept the deletion")
    case.spark.sql(f"DELETE FROM {HOLDS} WHERE hold_id = '{hold_id}'")
    accept_what_is_gone(case)
    assert case.delete(2) == ExitCode.DONE


def accept_what_is_gone(case: Case) -> None:
    """Set the property of the table of holds that the error names."""
    case.refused(case.delete(2), HoldError, "found rows deleted in snapshot")
    found = re.search(r"set the table's property (\S+) to (\S+)$", case.jobs.last_run().error)
    assert found is not None
    case.spark.sql(f"ALTER TABLE {HOLDS} SET TBLPROPERTIES ('{found[1]}' = '{found[2]}')")
