"""The cases: what there is many of, and the steps that are measured on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.scale.lake import NIGHT, NOW, TOPICS_PER_APPLICATION, ScaleLake, names
from benchmarks.scale.logs import OneRecordBatches, Shape
from benchmarks.scale.processes import Taken
from ebbtide.jobs.clean_log.cleaner import MAP_BYTES_SETTING
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING

WITH_WORK = 5
# Two of a core each, in processes of their own, with so many MiB.
EXECUTORS = "local-cluster[2,1,1024]"
MAP_BYTES = 8 * 1024 * 1024  # of the offset map, where the driver's memory is measured
LATER = "2026-12-02T00:00:00+00:00"


class Step(NamedTuple):
    """What one step took, and what it said of sizes and times."""

    name: str
    taken: Taken
    facts: Mapping[str, object]


class Case(NamedTuple):
    """What there is `count` of, how many at first and at most, and what is done with them."""

    many: str
    counts: tuple[int, ...]
    run: Callable[[Path, int], Iterator[Step]]


def _partitions(directory: Path, count: int) -> Iterator[Step]:
    yield from _life_of_a_topic(directory, Shape(partitions=count, segments=10))


def _many_of_both(directory: Path, count: int) -> Iterator[Step]:
    yield from _life_of_a_topic(directory, Shape(partitions=count, segments=100, apart_ms=10_000))


def _segments(directory: Path, count: int) -> Iterator[Step]:
    yield from _life_of_a_topic(directory, Shape(segments=count, apart_ms=10_000))


def _batches(directory: Path, count: int) -> Iterator[Step]:
    yield from _life_of_a_topic(directory, OneRecordBatches(count))


def _executors(directory: Path, count: int) -> Iterator[Step]:
    """A round of which executors do all work on rows, and what the driver then holds.

    The offset map has a bound of its own, which is made small here, so that it does not count.
    """
    lake = ScaleLake(directory)
    OneRecordBatches(count).write(lake.log)
    lake.ingest()
    lake.job("mark_tombstones", names(1))
    conf = [
        f"spark.master={EXECUTORS}",
        f"{DRIVER_ROWS_SETTING}=0",
        f"{MAP_BYTES_SETTING}={MAP_BYTES}",
    ]
    taken = lake.job("clean_log", names(1), conf=conf)
    yield Step("clean_log", taken, {"driver_mib": taken.driver_rss_bytes // (1024 * 1024)})


def _runs(directory: Path, count: int) -> Iterator[Step]:
    """A night of one small topic in a lake whose `runs` hold so many years."""
    lake, shape = ScaleLake(directory), Shape(segments=2)
    shape.write(lake.log)
    lake.ingest()
    yield Step("fill the table", *lake.script("benchmarks.scale.runs", "fill", str(count)))
    for job in NIGHT:
        yield _step(job, lake, lake.job(job, names(1)))
    yield Step("read the newest", *lake.script("benchmarks.scale.runs", "read"))


def _life_of_a_topic(directory: Path, shape: Shape | OneRecordBatches) -> Iterator[Step]:
    """One topic: ingest and a night, then one segment more a partition and another night."""
    lake = ScaleLake(directory)
    (topic,) = names(1)
    shape.write(lake.log)
    yield _step("ingest_segments", lake, lake.ingest())
    for job in NIGHT:
        yield _step(job, lake, lake.job(job, [topic]))
    shape.write_more(lake.log)
    yield _step("ingest of a segment more", lake, lake.ingest())
    for job in NIGHT:
        yield _step(f"{job}, next night", lake, lake.job(job, [topic], now=LATER))
    yield Step("state", *lake.script("benchmarks.scale.state", topic))


def _topics(directory: Path, count: int) -> Iterator[Step]:
    """All topics' first night; then few have work, here and in a lake of those few alone.

    expire_snapshots looks once more at what it has rewritten or merged, so that its work on the
    first night is done before.
    """
    lake = ScaleLake(directory / "all")
    shape = Shape(topics=count, partitions=3, segments=2)
    shape.write(lake.log)
    yield _step("ingest_segments", lake, lake.ingest())
    yield from _night(lake, {job: names(count) for job in NIGHT}, NOW, "")
    _look_once_more(lake, count)
    yield from _few_have_work(lake, shape, few_of_all())
    few = ScaleLake(directory / "few")
    shape._replace(topics=WITH_WORK).write(few.log)
    few.ingest()
    for _ in _night(few, {job: names(WITH_WORK) for job in NIGHT}, NOW, ""):
        pass
    _look_once_more(few, WITH_WORK)
    yield from _few_have_work(few, shape, few_alone())


def _look_once_more(lake: ScaleLake, count: int) -> None:
    for _ in _night(lake, {"expire_snapshots": names(count)}, NOW, ""):
        pass


def few_of_all() -> str:
    """How the steps' names end of the night in which few of all topics have work."""
    return f"{WITH_WORK} of them have work"


def few_alone() -> str:
    """How they end where there are no other topics."""
    return f"{WITH_WORK} alone"


def _few_have_work(lake: ScaleLake, shape: Shape, says: str) -> Iterator[Step]:
    """A night as Airflow has it: stages start for topics that may have work."""
    shape._replace(topics=WITH_WORK).write_more(lake.log)
    lake.ingest(names(WITH_WORK))
    for job in NIGHT:
        taken, due = lake.script("benchmarks.scale.due", job, LATER)
        found = due["topics"]
        assert isinstance(found, list)
        yield Step(f"{job} due, {says}", taken, {"topics": len(found)})
        yield from _night(lake, {job: found}, LATER, f", {says}")


def _night(lake: ScaleLake, topics: Mapping[str, list[str]], now: str, says: str) -> Iterator[Step]:
    """Each job on its topics, as many of them in one application as the DAGs have it."""
    for job, of_job in topics.items():
        groups = range(0, len(of_job), TOPICS_PER_APPLICATION)
        done = [lake.job(job, of_job[at : at + TOPICS_PER_APPLICATION], now=now) for at in groups]
        opens = [taken.opens for taken in done]
        if done:
            together = Taken(
                sum(taken.wall_s for taken in done),
                sum(taken.cpu_s for taken in done),
                max(taken.peak_rss_bytes for taken in done),
                "",
                None if None in opens else sum(filter(None, opens)),
            )
            yield Step(job + says, together, {"applications": len(done), "files": lake.files()})


def _step(name: str, lake: ScaleLake, taken: Taken) -> Step:
    return Step(name, taken, {"files": lake.files()})


CASES = {
    "partitions": Case("partitions of 10 segments, one topic", (500, 1000), _partitions),
    "topics": Case(f"topics of 3 partitions, {WITH_WORK} of them with work", (500,), _topics),
    "runs": Case("years of `runs`, 80 rows a night", (5, 10), _runs),
    "segments": Case("segments, one partition", (50_000, 100_000), _segments),
    "batches": Case("batches of one record, one partition", (16_000_000, 32_000_000), _batches),
    "executors": Case(
        "batches of one record, one partition, all work by executors",
        (1_000_000, 32_000_000),
        _executors,
    ),
    "both": Case("partitions of 100 segments, one topic", (1000,), _many_of_both),
}


def run(name: str, count: int, directory: Path) -> Iterator[Step]:
    """The steps of a case in a directory of its own, which is gone afterwards."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield from CASES[name].run(directory, count)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
