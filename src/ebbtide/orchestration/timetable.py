"""The timetable of all scheduled DAGs: a run starts only at its own tick.

Airflow's own timetable starts with the latest tick that has passed, even without catch-up: a user
who unpauses a DAG at noon would immediately start its run of 02:00.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk.timezone import coerce_datetime, utcnow
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

# The longest delay of the scheduler. Only a pause of the DAG should last longer.
LATEST_START = timedelta(minutes=5)


class NextTickTimetable(CronTriggerTimetable):
    """Runs at each tick of a cron expression. A tick missed by LATEST_START is skipped."""

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        """Return the run of the next tick, or of a tick that passed at most LATEST_START ago."""
        next_run = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        now = coerce_datetime(utcnow())
        if next_run is None or restriction.catchup or now - next_run.run_after <= LATEST_START:
            return next_run
        tick = self._align_to_next(now)
        if restriction.latest is not None and restriction.latest < tick:
            return None
        return DagRunInfo.interval(coerce_datetime(tick - self._interval), tick)
