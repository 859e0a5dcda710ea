"""Makes ebbtide's page, timetable, pool and notes known to Airflow; the rest is in the package."""

from airflow.plugins_manager import AirflowPlugin

from ebbtide.orchestration.page import serve
from ebbtide.orchestration.pool import PoolListener
from ebbtide.orchestration.run_note import NoteListener
from ebbtide.orchestration.timetable import NextTickTimetable


class EbbtidePlugin(AirflowPlugin):
    """Registers the page, the DAGs' timetable, and what makes a missing pool and a run's note."""

    name = "ebbtide"
    timetables = [NextTickTimetable]  # noqa: RUF012
    listeners = [PoolListener(), NoteListener()]  # noqa: RUF012
    fastapi_apps = [{"app": serve, "url_prefix": "/ebbtide", "name": "ebbtide"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Retention",
            "href": "ebbtide/",
            "destination": "nav",
            "category": "browse",
            "url_route": "ebbtide",
        }
    ]
