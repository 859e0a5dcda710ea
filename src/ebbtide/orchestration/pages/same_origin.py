"""Refuse requests that another site makes with a user's login: only our own pages change anything.

Airflow's cookie is SameSite=Lax, which still lets sites of the same domain post.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.configuration import conf
from fastapi import HTTPException, Request


def require_same_origin(request: Request) -> None:
    """Raise 403 unless the browser says that a page of this very origin has made the request.

    A request with a bearer token of its own is no browser's: no site can make one send it.
    """
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    if not _is_of_own_page(request):
        raise HTTPException(
            403, "expected a form that one of these pages has shown, found one of another site"
        )


def _is_of_own_page(request: Request) -> bool:
    """Read Sec-Fetch-Site, and Origin where there is none: browsers send it over https only."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", "")).netloc
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    return bool(origin) and origin in {request.headers.get("host"), base}
