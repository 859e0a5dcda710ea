"""The Kafka connections that a run needs, handed to its driver by the environment alone."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from ebbtide.errors import EbbtideError
from ebbtide.lake.reader import Lake
from ebbtide.log.requests.delete_request import DeleteRequest
from ebbtide.log.settings.connections import CONNECTIONS
from ebbtide.orchestration.driver.inputs import check_size

# Without its Kafka provider, Airflow's form has no such type and its command line makes it generic.
KINDS = ("kafka", "generic")

log = logging.getLogger(__name__)


def connections_needed(lake: Lake, request: DeleteRequest) -> set[str]:
    """Return the connections that the request names, and those of its topics' live replicas."""
    needed = {name for asked in request.topics.values() for name in asked.connections}
    for name in request.topics:
        try:
            needed.update(lake.topic(str(name)).config.live_replicas)
        except EbbtideError:
            continue  # the job meets the same error and writes it down
    return needed


def connections_of_topics(lake: Lake, topics: Iterable[str], named: str | None) -> set[str]:
    """Return the connections of a form, and of the topics' upstreams and live replicas."""
    needed = {named} if named else set()
    for name in topics:
        try:
            config = lake.topic(name).config
        except EbbtideError:
            continue  # the job meets the same error and writes it down
        needed.update(config.live_replicas)
        if config.upstream is not None and config.upstream.connection is not None:
            needed.add(config.upstream.connection)
    return needed


@contextmanager
def set_in_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the environment for spark-submit, and remove them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


@contextmanager
def in_environment(connections: Iterable[str]) -> Iterator[None]:
    """Set these connections in the environment for spark-submit, and remove them afterwards.

    The operator's env_vars are not used: YARN and Kubernetes show them on the command line.
    A connection that Airflow lacks is left out; the job fails the topics that need it.
    """
    settings = {
        name: of_connection for name in sorted(connections) if (of_connection := _settings(name))
    }
    text = json.dumps(settings)
    check_size(text, f"the connections {', '.join(settings)}", "name files of certificates in them")
    with set_in_environment({CONNECTIONS: text} if settings else {}):
        yield


def _settings(name: str) -> dict[str, Any] | None:
    """Return a connection's extra, which is librdkafka's configuration."""
    try:
        connection = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        log.warning("ebbtide: expected an Airflow connection %s of type kafka, found none", name)
        return None
    settings: dict[str, Any] = connection.extra_dejson
    mask_secret(settings)
    if connection.conn_type in KINDS:
        return settings
    kind = connection.conn_type
    log.warning("ebbtide: expected connection %s to be of type kafka, found %s", name, kind)
    return None
