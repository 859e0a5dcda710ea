"""Work of a test on topics, as a job does its own."""

from argparse import Namespace
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from ebbtide.runner.application import JobRun
from ebbtide.runner.job import Job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName

Work = Callable[[SparkSession, TopicName], JobOutcome]


def run_topics(
    spark: SparkSession, args: Namespace, topics: Sequence[TopicName], work: Work
) -> int:
    """Do the work on each topic, with a row in `runs`; return the exit code."""
    job: Job[JobOutcome] = Job(args.job, lambda session, name, _: work(session, name))
    return JobRun(job, args, {topic: {} for topic in topics}).on_topics(spark)
