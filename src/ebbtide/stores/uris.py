"""Paths and URIs as text. In a path each character stands for itself; in a URI `%` does not."""

from __future__ import annotations

import re
from urllib.parse import quote

# As RFC 3986 has it; what has none is a path.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?")


def scheme_of(uri: str) -> str:
    """Return a URI's scheme in lower case; empty for a path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else ""


def authority_of(uri: str) -> str:
    """Return the text between `//` and the path, such as a bucket; empty for a path."""
    match = _SCHEME.match(uri)
    return (match[2] or "") if match else ""


def after_authority(uri: str) -> str:
    """Return the path within a URI, encoded as it is."""
    return _SCHEME.sub("", uri, count=1)


def encoded(location: str) -> str:
    """Return a table's location as a URI: Iceberg and Hadoop write one with nothing encoded."""
    if not scheme_of(location):
        return location
    return _SCHEME.match(location)[0] + quote(after_authority(location))  # type: ignore[index]


def split_query(uri: str) -> tuple[str, str]:
    """Split a URI before its query; the query keeps its mark. Paths and `file:` URIs have none."""
    if scheme_of(uri) in ("", "file"):
        return uri, ""
    base, mark, query = uri.partition("?")
    return base, mark + query


def join(uri: str, *names: str) -> str:
    """Return the path or URI of what lies at `names` below `uri`; a query stays at the end."""
    base, query = split_query(uri)
    below = [quote(name) for name in names] if scheme_of(uri) else names
    return "/".join([base.rstrip("/"), *below]) + query


def file_name(uri: str) -> str:
    """Return the last name of a path or URI."""
    return split_query(uri)[0].rstrip("/").rpartition("/")[2]
