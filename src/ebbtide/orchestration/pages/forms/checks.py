"""Refuse a form whose Params the lake's state shows to be wrong, before a run starts for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ebbtide.errors import RequestError
from ebbtide.lake.reader import Lake
from ebbtide.log.requests.erase_request import Encoding, decode_keys
from ebbtide.log.settings.changes import parse_changes
from ebbtide.log.settings.names import INTERNAL_TOPICS, TopicName
from ebbtide.log.state.rebuilding import parse_asked
from ebbtide.orchestration.approval.waiting_plans import find_waiting
from ebbtide.orchestration.driver.preflight import check_form, check_known, check_request
from ebbtide.orchestration.outcome import delete_request


def check_params(
    lake: Lake, dag: str, params: Mapping[str, Any], defaults: Mapping[str, str]
) -> None:
    """Raise EbbtideError for Params that cannot be; `defaults` are the DAG's own, by Param."""
    if "topic" in params:
        _check_topic(lake, dag, params)
    elif dag in ("ingest_topic", "ingest_segments"):
        _check_cluster(params, params.get("cluster") or defaults.get("cluster"))
    elif dag == "ingest_table":
        _check_source(lake, params)
    elif dag == "approve_plan":
        find_waiting(lake, params["plans"])
    else:
        _check_enabled(lake, params.get("topics") or ())


def _check_topic(lake: Lake, dag: str, params: Mapping[str, Any]) -> None:
    name = str(TopicName.parse(params["topic"]))
    if dag == "delete_records":
        request = delete_request({**params, "topic": name})
        check_request(lake, request, clock=datetime.now(UTC), takes_part=False)
    if dag == "adopt_table":
        parse_changes(params.get("set") or (), ())
    if dag == "erase_keys":
        _check_keys(params)
    if dag == "repair_state":
        for param in ("log_start_offset", "max_event_time_ms"):
            parse_asked(param, params.get(param) or ())
    check_form(lake, dag, [name], params)


def _check_keys(params: Mapping[str, Any]) -> None:
    if bool(params.get("keys")) is bool(params.get("keys_file")):
        raise RequestError("expected keys, or a file of keys, found both or none")
    decode_keys(params.get("keys") or (), Encoding(params.get("encoding") or "utf-8"))


def _check_cluster(params: Mapping[str, Any], cluster: str | None) -> None:
    names = [TopicName.parse(text) for text in params.get("topics") or ()]
    others = [str(name) for name in names if cluster and name.cluster != cluster]
    if others:
        raise RequestError(
            f"expected topics of cluster {cluster}, found {', '.join(others)}: change the cluster, "
            "or the topics"
        )
    if internal := [str(name) for name in names if name.topic in INTERNAL_TOPICS]:
        raise RequestError(f"expected none of Kafka's own topics, found {', '.join(internal)}")


def _check_source(lake: Lake, params: Mapping[str, Any]) -> None:
    names = [str(TopicName.parse(text)) for text in params.get("topics") or ()]
    source = params.get("source")
    if source is None:
        check_known(lake, names)
        return
    if len(names) != 1:
        raise RequestError(
            f"expected one topic that gets the rows of {source}, found {len(names) or 'none'}"
        )
    if TopicName.parse(source) and ":" not in source:  # another catalog is Spark's to open
        lake.records(source)


def _check_enabled(lake: Lake, names: Sequence[str]) -> None:
    check_known(lake, [str(TopicName.parse(name)) for name in names])
    disabled = [name for name in names if not lake.topic(name).config.is_enabled]
    if disabled:
        raise RequestError(
            f"expected topics that are enabled, found {', '.join(disabled)} with "
            "ebbtide.enabled=false, which a run leaves out; set it to true with configure_topic"
        )
