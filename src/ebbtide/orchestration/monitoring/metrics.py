"""Send measurements by Airflow's own metrics: StatsD or OpenTelemetry, as `[metrics]` sets it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from ebbtide.orchestration.monitoring.measurements import Measurement

log = logging.getLogger(__name__)

SECTION = "metrics"


def is_on() -> bool:
    """Return whether Airflow sends metrics whose tags it keeps; without them topics would mix."""
    if conf.getboolean(SECTION, "statsd_datadog_enabled") or conf.getboolean(SECTION, "otel_on"):
        return True
    if not conf.getboolean(SECTION, "statsd_on"):
        return False
    if conf.getboolean(SECTION, "statsd_influxdb_enabled", fallback=False):
        return True
    log.warning(
        "ebbtide: expected tags in StatsD's metrics, found statsd_influxdb_enabled off, so none of "
        "ebbtide's are sent: each topic would overwrite the last; set it, or "
        "statsd_datadog_enabled, in [metrics]"
    )
    return False


def send(measurements: Iterable[Measurement]) -> None:
    """Send each once; Airflow drops what its lists of metrics leave out."""
    for name, value, tags, is_counter in measurements:
        if is_counter:
            stats.incr(name, int(value), tags=dict(tags))
        else:
            stats.gauge(name, value, tags=dict(tags))
