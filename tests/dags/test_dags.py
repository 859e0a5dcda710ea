import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ebbtide.orchestration.approval import NOTE, SHOWN
from ebbtide.orchestration.dags import PLAN, REJECTION
from ebbtide.orchestration.operator import EbbtideJobOperator
from ebbtide.specs.all_specs import FORMS
from tests.airflow_env import ROOT
from tests.dags.runs import dag_bag

APPROVED = (
    "approve_plan.execute_plans",
    "delete_records.delete_records",
    "erase_keys.erase_keys",
    "apply_retention.clean_log",
    "apply_retention.delete_records",
    "undo_run.record_rejection",
)

DAGS = [
    "abandon_table",
    "adopt_table",
    "apply_retention",
    "approve_plan",
    "certify_erasure",
    "configure_topic",
    "delete_records",
    "erase_keys",
    "example_low_watermark",
    "export_segments",
    "hold_records",
    "ingest_segments",
    "ingest_table",
    "ingest_topic",
    "mark_tombstones",
    "nightly_retention",
    "repair_state",
    "replicate_log",
    "undo_run",
]
WITH_FORM = [dag_id for dag_id in DAGS if dag_id != "example_low_watermark"]


@pytest.fixture(scope="module")
def dags() -> dict[str, Any]:
    bag = dag_bag()
    assert bag.import_errors == {}
    return dict(bag.dags)


def test_each_file_is_one_dag_of_its_name(dags: dict[str, Any]) -> None:
    assert sorted(dags) == DAGS == sorted(path.stem for path in (ROOT / "dags").glob("*.py"))


@pytest.mark.parametrize("dag_id", DAGS)
def test_every_dag_keeps_the_house_rules(dags: dict[str, Any], dag_id: str) -> None:
    dag = dags[dag_id]
    source = (ROOT / "dags" / f"{dag_id}.py").read_text()
    assert [dag.description] == [" ".join(dag.doc_md.split("\n\n")[0].split())]
    assert dag.doc_md.strip() == source.split('"""')[1].strip()
    assert dag.fileloc == str(ROOT / "dags" / f"{dag_id}.py")
    assert dag.deadline is None


@pytest.mark.parametrize("dag_id", DAGS)
def test_every_param_says_what_it_is(dags: dict[str, Any], dag_id: str) -> None:
    params = dags[dag_id].params
    assert bool(params) is (dag_id != "example_low_watermark")
    for name in params:
        param = params.get_param(name)
        assert param.schema["title"], name
        assert param.schema["type"], name
        assert param.description.endswith("."), name


def test_each_dag_that_people_start_leads_to_its_form(dags: dict[str, Any]) -> None:
    assert sorted(FORMS) == WITH_FORM
    for dag_id in WITH_FORM:
        assert f"[Its form](plugin/ebbtide/ebbtide/forms/{dag_id})" in dags[dag_id].doc_md


SCHEDULES = {
    "nightly_retention": "EBBTIDE_NIGHTLY_SCHEDULE",
    "ingest_segments": "EBBTIDE_INGEST_SCHEDULE",
    "ingest_topic": "EBBTIDE_INGEST_TOPIC_SCHEDULE",
    "ingest_table": "EBBTIDE_INGEST_TABLE_SCHEDULE",
    "replicate_log": "EBBTIDE_REPLICATE_SCHEDULE",
}


@pytest.fixture(scope="module")
def scheduled() -> Iterator[dict[str, Any]]:
    """The DAGs with 2 o'clock as every schedule, as the scheduler reads them back."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in SCHEDULES.values():
            patch.setenv(variable, "0 2 * * *")
        yield {dag_id: dag_bag().dags[dag_id] for dag_id in SCHEDULES}


@pytest.mark.parametrize("dag_id", SCHEDULES)
@pytest.mark.parametrize(
    ("unpaused", "last_run", "first_run"),
    [
        ("2026-03-05T12:00", None, "2026-03-06T02:00"),
        ("2026-03-05T02:06", None, "2026-03-06T02:00"),
        ("2026-03-05T02:04", None, "2026-03-05T02:00"),  # only just: a busy scheduler may be late
        ("2026-03-05T12:00", "2026-02-01T02:00", "2026-03-06T02:00"),
        ("2026-03-05T02:04", "2026-03-05T02:00", "2026-03-06T02:00"),
    ],
)
def test_unpausing_starts_no_run_of_the_past(
    scheduled: dict[str, Any],
    dag_id: str,
    unpaused: str,
    last_run: str | None,
    first_run: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pendulum
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.timetables.base import DagRunInfo

    dag = DagSerialization.from_dict(DagSerialization.to_dict(scheduled[dag_id]))
    last = None if last_run is None else DagRunInfo.exact(pendulum.parse(last_run))
    for module in ("airflow.timetables.trigger", "ebbtide.orchestration.timetable"):
        monkeypatch.setattr(f"{module}.utcnow", lambda: pendulum.parse(unpaused))
    info = dag.next_dagrun_info(last_automated_run_info=last)
    assert info.run_after == pendulum.parse(first_run)


def test_the_night_in_order(dags: dict[str, Any]) -> None:
    dag = dags["nightly_retention"]
    order = [task.task_id for task in dag.topological_sort()]
    assert order == [
        "group_topics",
        "mark_tombstones",
        "clean_log",
        "expire_segments",
        "delete_records",
        "expire_snapshots",
        "publish_low_watermarks",
        "find_open_plans",
        "request_approval",
        "report_run",
    ]
    stages = [dag.get_task(task_id) for task_id in order[2:] if task_id != "request_approval"]
    assert {stage.trigger_rule for stage in stages} == {"all_done"}


def test_holds_come_first_then_what_was_approved_then_the_night_then_plans(
    dags: dict[str, Any],
) -> None:
    """In the pool's slots, by Airflow's own rule: the weight alone, and not what follows."""
    jobs = {
        f"{dag_id}.{task.task_id}": task
        for dag_id, dag in dags.items()
        for task in dag.tasks
        if issubclass(getattr(task, "operator_class", type(task)), EbbtideJobOperator)
    }
    assert {task.weight_rule for task in jobs.values()} == {"absolute"}
    weights = {name: task.priority_weight for name, task in jobs.items()}
    of_holds = {weight for name, weight in weights.items() if name.startswith("hold_records.")}
    approved = {weights[name] for name in APPROVED}
    of_night = {weight for name, weight in weights.items() if name.startswith("nightly_retention.")}
    plans = {weights[f"{dag_id}.{PLAN}"] for dag_id in ("delete_records", "apply_retention")}
    assert [len(group) for group in (of_holds, approved, of_night, plans)] == [1, 1, 1, 1]
    assert min(of_holds) > min(approved) > min(of_night) > min(plans)


@pytest.mark.parametrize("reader", ["publish_low_watermarks", "find_open_plans", "report_run"])
def test_what_reads_the_outcome_of_jobs_waits_for_each_itself(
    dags: dict[str, Any], reader: str
) -> None:
    """Also for one that is cleared without what stands between and has succeeded."""
    readers = {dag_id: dag for dag_id, dag in dags.items() if dag.has_task(reader)}
    assert "nightly_retention" in readers
    before = {PLAN} if reader == "report_run" else {PLAN, REJECTION}
    passed_by = {
        f"{dag_id}.{task.task_id}"
        for dag_id, dag in readers.items()
        for task in dag.tasks
        if issubclass(getattr(task, "operator_class", type(task)), EbbtideJobOperator)
        and task.task_id not in {*before, *dag.get_task(reader).upstream_task_ids}
    }
    assert passed_by == set()


def test_no_param_has_the_name_of_a_field_of_a_question(dags: dict[str, Any]) -> None:
    """Airflow gives a task's field the value of the run's Param of its name."""
    for dag_id, dag in dags.items():
        assert not {NOTE, SHOWN} & set(dag.params), dag_id


@pytest.mark.parametrize(
    ("dag_id", "conf"),
    [
        ("nightly_retention", {"topics_per_application": 0}),
        ("nightly_retention", {"topics": ["no-cluster"]}),
        ("nightly_retention", {"topics": []}),
        ("ingest_segments", {"source": ""}),
        ("ingest_segments", {"cluster": "a.b"}),
        ("ingest_topic", {"connection": ""}),
        ("ingest_topic", {"cluster": "a.b"}),
        ("ingest_topic", {"pattern": ""}),
        ("ingest_topic", {"isolation": "serializable"}),
        ("ingest_table", {"topics": ["no-cluster"]}),
        ("ingest_table", {"source": "no-namespace"}),
        ("ingest_table", {"tombstone": "no-value"}),
        ("configure_topic", {"set": ["spark.master=local"]}),
        ("configure_topic", {"unset": ["kafka.retention.ms=1"]}),
        ("delete_records", {"timeout_ms": 0}),
        ("delete_records", {"topic": "no-cluster"}),
        ("delete_records", {"timestamp": "yesterday"}),
        ("delete_records", {"age": "30 days"}),
        ("delete_records", {"groups": [""]}),
        ("approve_plan", {"plans": []}),
        ("approve_plan", {"plans": ["clean_log"]}),
        ("apply_retention", {"stages": []}),
        ("apply_retention", {"stages": ["delete_records"]}),
        ("erase_keys", {"requested_by": ""}),
        ("erase_keys", {"reason": ""}),
        ("erase_keys", {"keys": ["two\nlines"]}),
        ("erase_keys", {"keys": [""]}),
        ("erase_keys", {"encoding": "latin-1"}),
        ("erase_keys", {"timeout_ms": 0}),
        ("hold_records", {"action": "lift"}),
        ("hold_records", {"partition": -1}),
        ("hold_records", {"keys": ["two\nlines"]}),
        ("hold_records", {"review_date": "soon"}),
        ("export_segments", {"target": ""}),
        ("export_segments", {"topic": None}),
        ("export_segments", {"partitions": [-1]}),
        ("mark_tombstones", {"topic": "no-cluster"}),
        ("mark_tombstones", {"from_offset": ["0:-1"]}),
        ("mark_tombstones", {"from_offset": ["a:7"]}),
        ("mark_tombstones", {"from_offset": []}),
        ("undo_run", {"topic": "no-cluster"}),
        ("undo_run", {"run": ""}),
    ],
)
def test_a_param_out_of_bounds_is_refused(
    dags: dict[str, Any], dag_id: str, conf: dict[str, Any]
) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    ((name, value),) = conf.items()
    with pytest.raises(ParamValidationError):
        dags[dag_id].params.get_param(name).resolve(value)


@pytest.mark.parametrize(
    ("dag_id", "conf", "words"),
    [
        ("nightly_retention", {"topics": ["orders"]}, "<cluster>.<topic>, such as log.orders"),
        ("undo_run", {"topic": "orders"}, "<cluster>.<topic>, such as log.orders"),
        ("repair_state", {"log_start_offset": ["0:1"]}, "PARTITION=NUMBER, such as 0=1200"),
        ("delete_records", {"age": "30 days"}, "an ISO 8601 duration, such as P30D"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_in_words(
    dags: dict[str, Any], dag_id: str, conf: dict[str, Any], words: str
) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    ((name, value),) = conf.items()
    with pytest.raises(ParamValidationError, match=f"^{re.escape(repr(words))} was expected"):
        dags[dag_id].params.get_param(name).resolve(value)


def test_no_param_answers_with_a_regular_expression(dags: dict[str, Any]) -> None:
    schemas = [dag.params.get_param(name).schema for dag in dags.values() for name in dag.params]
    assert len(schemas) > 50
    for schema in schemas:
        for part in (schema, schema.get("items", {})):
            assert "pattern" not in part, schema


def test_parsing_imports_nothing_heavy() -> None:
    """Airflow parses the files every few seconds; each of these costs a second or more."""
    code = (
        "import sys; before = set(sys.modules);"
        "import ebbtide.orchestration.handover;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " & {'pyspark', 'pyiceberg', 'pyarrow', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
