"""The Airflow plugin: registers ebbtide's pages, timetable and listeners from the package."""

from airflow.plugins_manager import AirflowPlugin

from ebbtide.orchestration.pages import PREFIX, VIEWS, serve
from ebbtide.orchestration.pool import PoolListener
from ebbtide.orchestration.run_note import NoteListener
from ebbtide.orchestration.timetable import NextTickTimetable


class EbbtidePlugin(AirflowPlugin):
    """Registers the pages, the DAGs' timetable, and the listeners for the pool and run notes."""

    name = "ebbtide"
    timetables = [NextTickTimetable]  # noqa: RUF012
    listeners = [PoolListener(), NoteListener()]  # noqa: RUF012
    fastapi_apps = [{"app": serve, "url_prefix": f"/{PREFIX}", "name": PREFIX}]  # noqa: RUF012
    external_views = list(VIEWS)  # noqa: RUF012
