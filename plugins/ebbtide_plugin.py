"""Puts ebbtide's page into Airflow's navigation; everything else is in the package."""

from airflow.plugins_manager import AirflowPlugin

from ebbtide.orchestration.page import serve


class EbbtidePlugin(AirflowPlugin):
    """Registers the page."""

    name = "ebbtide"
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
