"""The schedule of every DAG with a clock: each run belongs to a tick that has just come.

Airflow's own timetable begins with the latest tick that is over, also without catch-up: whoever
unpauses a DAG at noon would start the run of 2 o'clock at once.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk.timezone import coerce_datetime, utcnow
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

# How late the scheduler may see a tick. Only a pause should make it later.
LATEST_START = timedelta(minutes=5)


class NextTickTimetable(CronTriggerTimetable):
    """Runs at each tick of a cron expression; a tick missed by LATEST_START is left out."""

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        """Return the next run: of a tick to come, or of one that has only just passed."""
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
