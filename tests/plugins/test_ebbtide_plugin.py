import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, RequestError
from tests.airflow_env import ROOT
from tests.lake_sandbox import LakeSandbox, partition_result, state_of

Get = Callable[[str], Any]


@pytest.fixture
def anonymous() -> Iterator[Get]:
    from fastapi.testclient import TestClient

    with TestClient(api_server()) as client:
        yield client.get


@pytest.fixture
def signed_in() -> Iterator[Get]:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    app = api_server()
    user = SimpleAuthManagerUser(username="ann", role="ADMIN")
    token = app.state.auth_manager.generate_jwt(user)
    with TestClient(app) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        yield client.get


def api_server() -> Any:
    """Airflow's own application, with our plugin as it mounts it."""
    from airflow.api_fastapi.app import cached_app

    return cached_app(apps="core")


@pytest.mark.parametrize("path", ["/ebbtide/", "/ebbtide/api/topics"])
def test_nobody_reads_it_without_a_login(anonymous: Get, path: str) -> None:
    assert anonymous(path).status_code == 401


def test_the_page_needs_nothing_from_elsewhere(signed_in: Get) -> None:
    answer = signed_in("/ebbtide/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "http" not in answer.text.replace("httpx", "")


def test_an_empty_lake_has_no_topic(signed_in: Get, lake: LakeSandbox) -> None:
    assert signed_in("/ebbtide/api/topics").json() == {"topics": [], "total": 0, "problem": None}


def test_a_lake_that_is_not_configured_says_so(
    signed_in: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert signed_in("/ebbtide/api/topics").json() == {
        "topics": [],
        "total": 0,
        "problem": "expected SPARK_CONF_DIR to name the rendered conf, found it unset",
    }


def test_a_topic_with_its_last_night_and_what_failed_since(
    signed_in: Get, lake: LakeSandbox
) -> None:
    night = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)
    state = state_of(log_start_offset=5, next_clean_ms=1_790_000_000_000)
    lake.topic("log.a", {0: state}, {"kafka.cleanup.policy": "compact"})
    lake.records("log.a", [(0, 7)])
    result = {0: partition_result(log_start_offset=5, low_watermark=4)}
    lake.run("log.a", "clean_log", now=night, partitions=result, rows_removed=3)
    lake.run("log.a", "expire_segments", now=night, error=ConfigurationError("no"))
    later = night + timedelta(hours=1)
    refused = RequestError("expected x, found y")
    lake.run("log.a", "delete_records", dag="delete_records", now=later, error=refused)
    lake.run("log.a", "export_segments", dag="export_segments", now=later + timedelta(hours=1))
    (topic,) = signed_in("/ebbtide/api/topics").json()["topics"]
    (partition,) = topic.pop("partitions")
    assert partition.pop("size_bytes") > 0
    assert partition == {
        "partition": 0,
        "log_start_offset": 5,
        "low_watermark": 4,
        "log_end_offset": 100,
        "next_horizon_ms": 1_790_000_000_000,
        "waits_for_round": False,
    }
    ms = int(night.timestamp() * 1000)
    assert topic.pop("deletion").startswith("3 records left the table on ")
    assert topic == {
        "name": "log.a",
        "problem": None,
        "cleanup_policy": "compact",
        "is_enabled": True,
        "last_night": {
            "run_id": "run-1",
            "status": "failed",
            "errors": ["expire_segments: ConfigurationError: no"],
            "ended_ms": ms,
            "now_ms": ms,
            "rows_removed": 3,
        },
        "failures": [
            {
                "run_id": "run-1",
                "dag": "delete_records",
                "job": "delete_records",
                "error": "RequestError: expected x, found y",
                "ended_ms": ms + 3_600_000,
            }
        ],
    }


def test_many_topics_come_by_the_page(signed_in: Get, lake: LakeSandbox) -> None:
    for name in ("log.a", "log.b", "log.c"):
        lake.topic(name)
    answer = signed_in("/ebbtide/api/topics?offset=1&limit=1").json()
    assert ([topic["name"] for topic in answer["topics"]], answer["total"]) == (["log.b"], 3)


def test_a_topic_that_cannot_be_read_hides_no_other(signed_in: Get, lake: LakeSandbox) -> None:
    lake.topic("log.bad", config={"kafka.retention.ms": "soon"})
    lake.topic("log.good")
    bad, good = signed_in("/ebbtide/api/topics").json()["topics"]
    assert bad["name"] == "log.bad"
    assert "kafka.retention.ms" in bad["problem"]
    assert (good["name"], good["problem"]) == ("log.good", None)


def test_only_the_file_that_registers_is_executed(tmp_path: Path) -> None:
    """Airflow runs every other .py in the folder under its bare name, over whatever has it."""
    from airflow._shared.module_loading import find_path_from_directory

    plugins = tmp_path / "plugins"
    shutil.copytree(ROOT / "plugins", plugins, ignore=shutil.ignore_patterns("__pycache__"))
    (plugins / "package").mkdir()
    for other in ("types.py", "package/types.py"):
        (plugins / other).touch()
    paths = find_path_from_directory(str(plugins), ".airflowignore", "glob")
    assert [Path(path).name for path in paths] == ["ebbtide_plugin.py"]
