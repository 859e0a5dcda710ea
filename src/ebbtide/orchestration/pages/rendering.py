"""Render templates: texts for numbers, sizes and times, and links below the plugin's prefix."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from ebbtide import __version__
from ebbtide.moments import beyond, minute, to_datetime
from ebbtide.orchestration.outcome import cause_of
from ebbtide.text import NOTHING, number, seconds, size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# No script, style, font or picture from elsewhere, and no frame around it but Airflow's.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_LONGEST = 15  # digits of a value that stands for a time or a size, and not for no limit
_CODE = re.compile("`([^`]*)`")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))


@cache
def environment() -> Environment:
    """Build the templates' environment, in which everything is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from ebbtide.orchestration.approval.plan_table import report_of
    from ebbtide.orchestration.pages.views.holds import hold_form

    made = Environment(
        loader=PackageLoader("ebbtide.orchestration.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "size": size,
        "moment": minute,
        "seconds": seconds,
        "share": share,
        "relative": relative,
        "iso": iso,
        "segment": lambda text: quote(text, safe=""),
        "query": query,
        "cause": cause_of,
        "with_code": with_code,
        "report": report_of,
        "value_in_words": value_in_words,
        "hold_form": hold_form,
    }
    made.globals |= {"version": __version__}
    return made


def render(template: str, root: str, **values: Any) -> str:
    """Return a page; `root` is the path that the plugin is mounted at, without a slash at its end.

    Airflow itself is what `root` lies below.
    """
    clock_ms = int(datetime.now(UTC).timestamp() * 1000)
    airflow = root.rpartition("/")[0]
    page = environment().get_template(template)
    return page.render(root=root, airflow=airflow, clock_ms=clock_ms, **values)


def share(value: float | None) -> str:
    """Format a ratio in [0, 1] as per cent."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def value_in_words(text: str, name: str) -> str:
    """Return a setting's value in the unit that a person would choose; empty where it has none."""
    if not text.isdecimal() or len(text) > _LONGEST:
        return ""
    if name.endswith((".ms", "-ms")):
        units = (f"{int(text) / length:g} {unit}" for unit, length in _UNITS if int(text) >= length)
        return next(units, "")
    return size(int(text)) if name.endswith("bytes") and int(text) >= 1000 else ""


def relative(ms: int | None, clock_ms: int) -> str:
    """Say how far from now a time is, in its largest unit; empty where there is no time."""
    if ms is None or ms < 0 or beyond(ms):
        return ""
    distance = abs(ms - clock_ms)
    for unit, length in _UNITS:
        if distance >= length:
            text = f"{round(distance / length)} {unit}"
            return f"in {text}" if ms > clock_ms else f"{text} ago"
    return "now"


def iso(ms: int) -> str:
    """Return a time for the attribute `datetime` of the element `time`."""
    return to_datetime(ms).isoformat(timespec="seconds")


def with_code(text: str) -> Markup:
    """Return text whose parts in backticks are code, everything escaped."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def query(values: dict[str, Any]) -> str:
    """Return a query string of those values that are not empty, with its question mark."""
    given = {
        name: value
        for name, value in values.items()
        if value is not False and value not in (None, "")
    }
    return f"?{urlencode(given)}" if given else ""
