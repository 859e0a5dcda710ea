"""The alert rules in Prometheus's own unit tests: each fires on what it is for, and no other does.

Exporters differ: one keeps what a night has sent, the other forgets it after minutes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lake_sandbox import ROOT

RULES = ROOT / "conf" / "prometheus" / "alerts.yml"
PREFIX = "airflow_ebbtide_"
LAST_SUCCESS = "last_success_timestamp_seconds"
SECONDS_A_DAY = 86_400
EVERY_S = 1800
SAMPLES_A_DAY = SECONDS_A_DAY // EVERY_S
NIGHTS = 5
# A night ends at two, and the last one was ten hours ago.
ENDED_AT_S = 2 * 3600
LOOKED_AT = f"{NIGHTS - 1}d12h"
# What a topic sends after each night; None is a night that sent nothing.
Sent = Mapping[str, Sequence[float | None]]

SUCCEEDED = [night * SECONDS_A_DAY + ENDED_AT_S for night in range(NIGHTS)]
WELL: Sent = {
    LAST_SUCCESS: SUCCEEDED,
    "horizon_overdue_seconds": [0, 3600, 172_000, 0, 172_800],
    "erasures_overdue": [1, 0, 2, 1, 0],
    "seconds_to_erasure_deadline": [-1, 60, -7, -1, 60],
    "uncleanable_partitions": [0, 1, 0, 1, 0],
    "open_transaction_seconds": [0, 0, 86_400, 0, 3600],
    "waiting_for_replicas": [5, 5, 0, 7, 7],
    "segments_held_back": [3, 0, 4, 4, 4],
    "low_watermark_lag": [9, 0, 9, 0, 9],
    "low_watermark_unknown": [1, 1, 0, 1, 1],
    "seconds_since_last_round": [0, 604_800, 0, 0, 604_800],
    "dirty_ratio": [0.95, 0.95, 0.9, 0.95, 0.95],
    "waiting_approvals": [1, 1, 1, 1, 0],
    "holds_to_review": [0, 1, 0, 1, 0],
    "night_records_removed": [100, 200, 100, 100, 200],
}
# What is wrong with a topic that fires an alert.
SICK: Mapping[str, Sent] = {
    # One that fails sends when it last succeeded.
    "EbbtideTopicPassedNoNight": {LAST_SUCCESS: [*SUCCEEDED[:3], *SUCCEEDED[2:3] * 2]},
    "EbbtideHorizonOverdue": {"horizon_overdue_seconds": [0, 0, 0, 0, 172_801]},
    "EbbtideErasureOverdue": {"erasures_overdue": [0, 0, 0, 0, 1]},
    "EbbtidePartitionUncleanable": {"uncleanable_partitions": [0, 0, 1, 2, 1]},
    "EbbtideTransactionOpen": {"open_transaction_seconds": [0, 0, 0, 0, 86_401]},
    "EbbtideWaitingForReplicas": {"waiting_for_replicas": [0, 0, 5, 5, 1]},
    "EbbtideSegmentsHeldBack": {"segments_held_back": [0, 1, 4, 4, 2]},
    "EbbtideReplicaBehind": {"low_watermark_lag": [0, 0, 1, 1, 9]},
    "EbbtideReplicaUnknown": {"low_watermark_unknown": [0, 0, 1, 1, 1]},
    "EbbtideNoRound": {"seconds_since_last_round": [0, 0, 0, 0, 604_801]},
    "EbbtideDirty": {"dirty_ratio": [0.5, 0.95, 0.91, 1, 0.95]},
    "EbbtidePlanWaits": {"waiting_approvals": [0, 0, 0, 1, 1]},
    "EbbtideHoldToReview": {"holds_to_review": [0, 0, 0, 0, 1]},
    "EbbtideNightRemovedMore": {"night_records_removed": [100, 100, 100, 100, 201]},
}
# All was well, and then no night ran.
STOPPED: Sent = {name: [0, 0, None, None, None] for name in WELL} | {
    LAST_SUCCESS: [*SUCCEEDED[:2], None, None, None]
}

pytestmark = [pytest.mark.services, pytest.mark.parametrize("keeps", [True, False])]


@pytest.mark.parametrize("alert", SICK)
def test_an_alert_fires_on_its_topic_and_no_other_does(
    alert: str, keeps: bool, tmp_path: Path
) -> None:
    sick = {name: sent for name, sent in WELL.items() if name not in SICK[alert]} | SICK[alert]
    series = series_of("well", WELL, keeps) + series_of("sick", sick, keeps)
    check_fires(tmp_path, series, [(alert, "sick")])


def test_an_alert_fires_if_nights_stop(keeps: bool, tmp_path: Path) -> None:
    forgotten = [] if keeps else [("EbbtideNoNightMeasured", "")]
    fires = [("EbbtideTopicPassedNoNight", "stopped"), *forgotten]
    check_fires(tmp_path, series_of("stopped", STOPPED, keeps), fires)


def test_an_alert_fires_if_nothing_was_ever_measured(keeps: bool, tmp_path: Path) -> None:
    series = series_of("new", {"waiting_approvals": [0] * NIGHTS}, keeps)
    check_fires(tmp_path, series, [("EbbtideNoNightMeasured", "")])


def test_each_alert_has_its_test(keeps: bool) -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert {rule["alert"] for rule in group["rules"]} == {*SICK, "EbbtideNoNightMeasured"}


def series_of(topic: str, sent: Sent, keeps: bool) -> list[dict[str, str]]:
    """Return a topic's metrics as an exporter shows them; one that forgets shows each once."""
    labels = f'{{catalog="lake",cluster="c",topic="{topic}"}}'
    return [
        {"series": f"{PREFIX}{name}{labels}", "values": shown(values, keeps)}
        for name, values in sent.items()
    ]


def shown(values: Sequence[float | None], keeps: bool) -> str:
    """Return the samples from time 0 on: `5+0x9` is ten of 5, and `_x9` nine times none."""
    samples = [f"_x{ENDED_AT_S // EVERY_S}"]
    last: float | None = None
    for value in values:
        last = value if value is not None or not keeps else last
        if last is None:
            samples.append(f"_x{SAMPLES_A_DAY}")
        elif keeps:
            samples.append(f"{last}+0x{SAMPLES_A_DAY - 1}")
        else:
            samples.append(f"{last} _x{SAMPLES_A_DAY - 1}")
    return " ".join(samples)


def check_fires(
    directory: Path, series: list[dict[str, str]], fires: Sequence[tuple[str, str]]
) -> None:
    """Let promtool check the rules, and that these fire, each with its topic, and no other."""
    expected: list[dict[str, Any]] = [
        {"labels": f'{{alertname="{alert}"' + f',topic="{topic}"' * bool(topic) + "}", "value": 1}
        for alert, topic in fires
    ]
    query = {
        "expr": 'count by (alertname, topic) (ALERTS{alertstate="firing"})',
        "eval_time": LOOKED_AT,
        "exp_samples": expected,
    }
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{EVERY_S}s",
        "tests": [{"interval": f"{EVERY_S}s", "input_series": series, "promql_expr_test": [query]}],
    }
    file = directory / "test.yml"
    file.write_text(yaml.safe_dump(test))
    promtool("check", "rules", "--lint-fatal", str(RULES))
    promtool("test", "rules", str(file))


def promtool(*arguments: str) -> None:
    """Run Prometheus's tool, from Debian's package prometheus; it must succeed."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"promtool {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
