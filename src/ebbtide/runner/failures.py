"""Report a job's failure: in its log, and in the file of causes that Airflow reads."""

from __future__ import annotations

import json
import logging
import os

from ebbtide.errors import CAUSES_FILE, EbbtideError, ExitCode
from ebbtide.runner.outages import in_words
from ebbtide.settings.names import TopicName
from ebbtide.spark import job_log

log = logging.getLogger(__name__)


def log_failure(what: str, error: BaseException) -> None:
    """Log an error, with its traceback if it is not an EbbtideError."""
    foreseen = isinstance(error, EbbtideError)
    log.error(
        "%s: %s: %s",
        what,
        type(error).__name__,
        in_words(error),
        exc_info=None if foreseen else error,
    )


def hand_on(error: BaseException, topic: TopicName | None = None) -> None:
    """Add the error to the file of causes, if Airflow asks for one."""
    add_cause(type(error).__name__, in_words(error), topic)


def add_cause(error_class: str | None, message: str, topic: TopicName | None = None) -> None:
    """Add a cause to the file of causes; without `error_class` for a wrong argument."""
    if path := os.environ.get(CAUSES_FILE):
        about = None if topic is None else str(topic)
        with open(path, "a") as file:
            file.write(json.dumps([about, error_class, message]) + "\n")


def refuse(job: str, error: EbbtideError) -> ExitCode:
    """Log why the run is refused before any topic, and return its exit code."""
    job_log.start(job)
    log_failure("refused", error)
    hand_on(error)
    return ExitCode.TRANSIENT if error.transient else ExitCode.REFUSED
