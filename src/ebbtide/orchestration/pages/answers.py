"""Answers of the pages: HTML with its security headers, and the paths below Airflow's own."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ebbtide.orchestration.pages.rendering import SECURITY_HEADERS, render


def page(request: Request, template: str, *, status_code: int = 200, **values: Any) -> Response:
    """Return a page made from a template."""
    html = render(template, root_of(request), **values)
    return HTMLResponse(html, status_code, headers=SECURITY_HEADERS)


def unkept(answer: Response) -> Response:
    """Return the answer so that no browser keeps it."""
    answer.headers["Cache-Control"] = "no-store"
    return answer


def go_to(request: Request, path: str) -> Response:
    """Send the browser to a page of ours, behind a form that it has posted."""
    return RedirectResponse(f"{root_of(request)}/{path}", 303, headers=SECURITY_HEADERS)


def root_of(request: Request) -> str:
    """Return the path that the plugin is mounted at, below Airflow's own base path."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")
