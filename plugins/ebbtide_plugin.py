"""Makes ebbtide's page and timetable known to Airflow; everything else is in the package."""

from airflow.plugins_manager import AirflowPlugin

from ebbtide.orchestration.page import serve
from ebbtide.orchestration.timetable import NextTickTimetable


class EbbtidePlugin(AirflowPlugin):
    """Registers the page, and the timetable that the DAGs' schedules are kept as."""

    name = "ebbtide"
    timetables = [NextTickTimetable]  # noqa: RUF012
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
