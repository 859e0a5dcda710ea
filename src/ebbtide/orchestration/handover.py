"""The tasks around the stages: choose topics, publish low watermarks, report the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from airflow.sdk import (
    Asset,
    AssetAlias,
    TriggerRule,
    XComArg,
    chain,
    get_current_context,
    task,
)
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from ebbtide.errors import EbbtideError
from ebbtide.kafka.reasons import Reason
from ebbtide.lake.reader import Lake, open_lake
from ebbtide.lake.runs import newest
from ebbtide.ledger.own_tables import Run
from ebbtide.moments import to_ms
from ebbtide.orchestration.approval import answer_of, page_of_topic, plans_of
from ebbtide.orchestration.deletions import NIGHTLY
from ebbtide.orchestration.driver import (
    attempt_of,
    began,
    causes_of,
    check_known,
    explained,
    states_of,
)
from ebbtide.orchestration.erasures import late_replicas, overdue_erasures
from ebbtide.orchestration.house import INGESTED
from ebbtide.orchestration.monitoring import FinishedRun, observe
from ebbtide.orchestration.night import LowWatermark, grouped, newest_answers, retention_of
from ebbtide.orchestration.operator import PLAN, EbbtideJobOperator
from ebbtide.orchestration.outcome import first_failures
from ebbtide.orchestration.pool import SPARK_POOL
from ebbtide.orchestration.run_note import DECISION, FAILURES
from ebbtide.settings.names import TopicName

log = logging.getLogger(__name__)

TOPICS = AssetAlias("ebbtide")
GROUP_TOPICS = "group_topics"
PUBLISH = "publish_low_watermarks"
FAILED, SKIPPED = {"failed"}, {"skipped"}


def stage(job: str, groups: XComArg, **kwargs: Any) -> MappedOperator:
    """Run the stage `job` as mapped tasks, one per group, even if another group failed before."""
    rule = TriggerRule.ALL_DONE if "after" in kwargs else TriggerRule.ALL_SUCCESS
    return EbbtideJobOperator.partial(
        task_id=job,
        job=job,
        trigger_rule=rule,
        pool=SPARK_POOL,  # a mapped task ignores the operator's own default
        map_index_template="{{ task.label }}",
        **kwargs,
    ).expand(topics=groups)


@task(task_id=GROUP_TOPICS)
def group_topics() -> list[list[str]]:
    """Group the enabled topics, or those of the Param, by topics_per_application."""
    context = get_current_context()
    params = context["params"]
    with explained(context):
        attempt_of(context)  # a wrong `now` fails here once, not in every stage
        with open_lake() as lake:
            names = chosen_topics(lake, params.get("topics"))
    listed = ", ".join(names) or "none was ingested yet"
    log.info("ebbtide: %d topics: %s", len(names), listed)
    return grouped(names, params["topics_per_application"])


def chosen_topics(lake: Lake, asked: Sequence[str] | None) -> list[str]:
    """Return the enabled topics with partitions, of `asked` or of all topics.

    Raise RequestError if a topic in `asked` does not exist.
    """
    check_known(lake, asked or ())
    names = sorted(set(asked)) if asked else lake.topic_names()
    return [name for name in names if _takes_part(lake, name)]


def _takes_part(lake: Lake, name: str) -> bool:
    try:
        topic = lake.topic(name)
        is_enabled, has_partitions = topic.config.is_enabled, bool(topic.partitions)
    except EbbtideError:
        return True  # the jobs fail with the same error and record it
    if not is_enabled:
        log.info("ebbtide: %s: skipped, %s", name, Reason.DISABLED)
    elif not has_partitions:
        log.info("ebbtide: %s: skipped, it has no partition yet", name)
    return is_enabled and has_partitions


class Publishes(TypedDict):
    """The low watermarks to publish."""

    last_stage: str  # only topics that this stage handed on are published
    said_by: str | None  # the stage that asked the replicas for them; None: `last_stage`
    is_ingest: bool


# Partitions are text, as in JSON.
WatermarksByTopic = dict[str, dict[str, int]]


def publishing(
    last_stage: str, said_by: str | None = None, *, is_ingest: bool = False
) -> Publishes:
    """Return the low watermarks that a run publishes."""
    return Publishes(last_stage=last_stage, said_by=said_by, is_ingest=is_ingest)


def conclude(
    jobs: Sequence[EbbtideJobOperator | MappedOperator],
    *between: XComArg,
    publishes: Publishes | None = None,
    **of_report: Any,
) -> XComArg:
    """Chain publishing, the tasks `between` and `report_run` after `jobs`; return `report_run`.

    Each of these tasks also depends on every job directly. If a user clears only a run's failed
    tasks, the tasks between a job and `report_run` stay successful, so `report_run` would not wait.
    """
    published = [] if publishes is None else [publish_low_watermarks(publishes)]
    judged: XComArg = report_run(publishes=publishes, **of_report)
    readers = [*published, *between, judged]
    chain(*readers)
    for reader in readers:
        chain([*jobs], reader)
    return judged


@task(task_id=PUBLISH, trigger_rule=TriggerRule.ALL_DONE, outlets=[TOPICS], multiple_outputs=False)
def publish_low_watermarks(publishes: Publishes) -> WatermarksByTopic:
    """Emit an asset event with the low watermarks of each topic. Return them.

    This is a separate task: Airflow drops the events of a failed task, and `report_run` can fail.
    """
    return _publish(get_current_context(), publishes, {})


def _publish(context: Any, publishes: Publishes, published: WatermarksByTopic) -> WatermarksByTopic:
    """Emit an event for each topic whose low watermarks are not published yet. Return them.

    After an ingest, also emit an event of the asset INGESTED, which can trigger a nightly run. If
    an undo lowered the low watermarks, `undone_run` names the run that it undid. `retention` has
    the topic's policy and next dates: the asset itself cannot, since Airflow never updates its
    extra.
    """
    handed_on = {answer["topic"] for answer in _answers(context, publishes["last_stage"])}
    answers = _answers(context, publishes["said_by"] or publishes["last_stage"])
    undone = {a["topic"]: a["undone_run"] for a in answers if "undone_run" in a}
    new = {
        topic: watermarks
        for topic, watermarks in by_topic(answers).items()
        if topic in handed_on and published.get(topic) != watermarks
    }
    events = context["outlet_events"][TOPICS]
    if publishes["is_ingest"] and handed_on - published.keys():
        events.add(INGESTED)
    for topic, watermarks in new.items():
        extra: dict[str, Any] = {"low_watermarks": {**watermarks}}
        if (retention := _retention_of(topic)) is not None:
            extra["retention"] = retention
        if topic in undone:
            extra["undone_run"] = undone[topic]
        events.add(topic_asset(topic), extra=extra)
        log.info("ebbtide: %s: low watermarks %s", topic, watermarks)
    return new


def _retention_of(topic: str) -> dict[str, Any] | None:
    """Return the topic's policy and next dates, or None if they cannot be read or shown."""
    try:
        with open_lake() as lake:
            return retention_of(lake.topic(topic))
    except Exception as error:  # events of other topics must not depend on this topic
        log.warning("ebbtide: %s: publishing its event without policy and dates: %s", topic, error)
        return None


@task(trigger_rule=TriggerRule.ALL_DONE, retries=0, inlets=[TOPICS], outlets=[TOPICS])
def report_run(
    stages: Sequence[str],
    groups: str | None = None,
    plans: str | None = None,
    approval: str | None = None,
    publishes: Publishes | None = None,
) -> None:
    """Log topic, stage and cause of each failure, then the run's report or its plans.

    `plans` is the task that made plans, and `approval` the task that asked for them. The decision
    becomes the run's note. If the plans were not approved, this task ends as skipped. Its inlet
    reads earlier events of the topics' assets, for the metrics. If a job was cleared and ran again,
    the low watermarks of `publishes` are published here.
    """
    from ebbtide.orchestration.report import render_run

    context = get_current_context()
    run_id, dag = context["dag_run"].run_id, context["ti"].dag_id
    causes = causes_of(context)
    if approval is not None:  # a stage without a plan was skipped
        stages = [stage for stage in stages if set(states_of(context, stage).values()) != SKIPPED]
    with explained(context), open_lake() as lake:
        of_dag = lake.runs(began(context["dag_run"]), run_id=run_id, dag=dag)
        runs = [run for run in of_dag if run.task in stages]
        failures = _failed_topics(context, stages, groups, runs, causes)
        failures = failures or _failed_tasks(context, causes)
        if dag == NIGHTLY:
            failures = [*_late_erasures(context, lake, groups, runs), *failures]
        for failure in failures:
            log.error("FAILED %s", failure)
        report = "" if runs else "\n".join(_plans(context, [plans] if plans else stages))
        log.info("%s", report or render_run(lake, run_id, runs))
        observe(context, lake, _finished_run(context, stages, groups, runs), TOPICS)
    if failures:
        context["ti"].xcom_push(key=FAILURES, value=failures)
        raise AirflowFailException("; ".join(failures))
    if publishes is not None:
        published = context["ti"].xcom_pull(task_ids=PUBLISH) or {}
        _publish(context, publishes, published)
    if plans is not None and approval is not None:
        _conclude(context, plans, approval)


def _conclude(context: Any, plans: str, approval: str) -> None:
    """Hand the decision on as the run's note. Skip this task if the plans may not be executed."""
    answer = answer_of(context, approval)
    kept = plans_of(context, plans) if answer is None else answer.plans
    names = [f"{plan['plan_id']} of {plan['topic']}" for plan in kept]
    decision = "Only planned. Nothing was changed." if answer is None else answer.in_words()
    lines = [decision, *names]
    context["ti"].xcom_push(key=DECISION, value=lines)
    log.info("%s", "\n".join(lines))
    if answer is not None and not answer.may_execute:
        raise AirflowSkipException(decision)


def _failed_topics(
    context: Any,
    stages: Sequence[str],
    groups: str | None,
    runs: Sequence[Run],
    causes: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return a line for each topic that failed in a stage."""
    handed_on = {s: {a["topic"] for a in _answers(context, s)} for s in stages}
    topics = _grouped_topics(context, groups) if groups else sorted({run.topic for run in runs})
    failures = first_failures(topics, handed_on, newest(runs))
    written = {(run.topic, run.task) for run in runs}
    return [
        f"{f.topic} failed in {f.stage}: "
        + (f.cause if (f.topic, f.stage) in written else _joined(causes, f.stage) or f.cause)
        for f in failures
    ]


def _late_erasures(context: Any, lake: Lake, groups: str | None, runs: Sequence[Run]) -> list[str]:
    """Return a line for each topic with deletes that are not off the disk by their deadline."""
    now_ms, lines = to_ms(attempt_of(context).now), []
    for name in _grouped_topics(context, groups) if groups else ():
        try:
            topic = lake.topic(name)
            overdue, replicas = overdue_erasures(topic, now_ms), late_replicas(topic, now_ms)
        except EbbtideError:
            continue  # the stages have failed with this error
        if overdue is not None:
            of_topic = [run for run in runs if run.topic == name]
            lines.append(f"{name}: {overdue.in_words(of_topic, now_ms)}")
        lines += [f"{name}: {replica.text}" for replica in replicas if replica.is_overdue]
    return lines


def _finished_run(
    context: Any, stages: Sequence[str], groups: str | None, runs: Sequence[Run]
) -> FinishedRun:
    """Return the run for monitoring, without rows from before it was cleared."""
    topics = _grouped_topics(context, groups) if groups else sorted({run.topic for run in runs})
    start = context["dag_run"].start_date
    return FinishedRun(
        dag=context["ti"].dag_id,
        now=attempt_of(context).now,
        topics=topics,
        healthy={answer["topic"] for last in stages[-1:] for answer in _answers(context, last)},
        answers=newest_answers(_answers(context, name) for name in stages),
        rows=[run for run in runs if start is None or run.ended >= start],
    )


def by_topic(answers: Sequence[LowWatermark]) -> WatermarksByTopic:
    """Return low watermarks by topic and partition."""
    watermarks: WatermarksByTopic = {}
    for answer in answers:
        watermarks.setdefault(answer["topic"], {})[str(answer["partition"])] = answer[
            "low_watermark"
        ]
    return watermarks


def topic_asset(name: str) -> Asset:
    """Return the asset of a topic, ebbtide://lake/<cluster>/<topic>.

    Its extra has only values that never change: Airflow stores an asset with its first event, and
    later updates the extra only if a DAG declares the asset.
    """
    cluster, topic, _ = TopicName.parse(name)
    extra: dict[str, Any] = {"cluster": cluster, "topic": topic, "page": page_of_topic(name)}
    return Asset(name=name, uri=f"ebbtide://lake/{cluster}/{topic}", extra=extra)


def _failed_tasks(context: Any, causes: Mapping[str, Sequence[str]]) -> list[str]:
    """Describe the tasks that failed before they worked on a topic, with their causes."""
    lines = []
    for task_id in sorted(context["task"].get_flat_relative_ids(upstream=True)):
        states = states_of(context, task_id)
        failed = [name for name, state in states.items() if state in FAILED]
        if failed and task_id in causes:
            lines += [f"{task_id} failed: {cause}" for cause in causes[task_id]]
        else:
            silently = "failed without a cause from ebbtide; see its log"
            lines += [f"{name} {silently}" for name in failed]
    return lines


def _joined(causes: Mapping[str, Sequence[str]], task: str) -> str:
    return "; ".join(causes.get(task, ()))


def _plans(context: Any, stages: Sequence[str]) -> list[str]:
    """Return the plans' texts of a run that only plans."""
    pulled = context["ti"].xcom_pull(task_ids=list(stages), key=PLAN) or []
    return [plan for plan in pulled if plan]


def _grouped_topics(context: Any, groups: str) -> list[str]:
    """Return the topics of all groups. If the task that makes groups failed, return none."""
    topic_groups = context["ti"].xcom_pull(task_ids=groups)
    return [name for group in topic_groups or () for name in group]


def _answers(context: Any, stage: str) -> list[LowWatermark]:
    """Return the low watermarks that all mapped instances of a stage handed on."""
    pulled = context["ti"].xcom_pull(task_ids=[stage])
    return [answer for answers in pulled for answer in answers or ()]
