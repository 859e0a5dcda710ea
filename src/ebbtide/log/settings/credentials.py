"""Credentials in a URI: refused, since a URI is stored, logged and shown on command lines."""

from __future__ import annotations

import re

from ebbtide.errors import RequestError

_SECRET = "(?:secret|password|token|key|sas|signature)"
# A user before the host, or a parameter by the name of a secret.
_IN_A_URI = (
    r"[a-zA-Z][a-zA-Z0-9+.-]*://"
    rf"""(?:[^/?#\s'"]*@|[^?\s'"]*\?(?:[^\s'"]*&)?[^=&\s'"]*{_SECRET}[^=&\s'"]*=)"""
)
# A form field's pattern in JSON Schema.
WITHOUT_CREDENTIALS = rf"^(?!.*{_IN_A_URI}).*$"
_FOUND = re.compile(_IN_A_URI, re.IGNORECASE)
_USER = re.compile(r"(://)[^/?#\s'\"]*@")
_VALUE = re.compile(rf"([?&][^=&\s]*{_SECRET}[^=&\s]*=)[^&\s'\"]*", re.IGNORECASE)


def check_uri(uri: str) -> str:
    """Return the URI; RequestError where it holds a user, a password or a key."""
    if _FOUND.search(uri):
        raise RequestError(
            f"expected a URI without credentials, found some in {redacted(uri)}: it would be "
            "stored with the topic and shown in logs; give Spark's processes the credentials in "
            "their environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
        )
    return uri


def redacted(text: str) -> str:
    """Return the text with the credentials of each URI in it left out."""
    return _VALUE.sub(r"\1***", _USER.sub(r"\1***@", text))
