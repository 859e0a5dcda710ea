"""Open an S3 API with pyarrow by the settings of Iceberg's S3FileIO.

Source: Iceberg's S3FileIOProperties, AwsClientProperties and HttpClientProperties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs

from ebbtide.errors import ConfigurationError

SCHEMES = ("s3", "s3a", "s3n")
PREFIXES = ("s3.", "client.", "http-client.")

# Iceberg's defaults for properties that a table does not set.
_RETRIES = 5
# pyarrow's argument, and the properties that may give it, the first one wins.
_ARGUMENTS = {
    "access_key": ("s3.access-key-id",),
    "secret_key": ("s3.secret-access-key",),
    "session_token": ("s3.session-token",),
    "region": ("client.region", "s3.region"),
    "role_arn": ("client.assume-role.arn",),
    "session_name": ("client.assume-role.session-name",),
    "external_id": ("client.assume-role.external-id",),
}
_MILLISECONDS = {
    "connect_timeout": (
        "http-client.apache.connection-timeout-ms",
        "http-client.urlconnection.connection-timeout-ms",
    ),
    "request_timeout": (
        "http-client.apache.socket-timeout-ms",
        "http-client.urlconnection.socket-timeout-ms",
    ),
}
# Settings by which files would be read or written wrongly here. None: with any value.
_REFUSED = {
    "s3.remote-signing-enabled": "true",
    "s3.sse.type": "kms",
    "s3.client-factory-impl": None,
}


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a setting by which files would not be opened as it says."""
    for name, refused in _REFUSED.items():
        value = settings.get(name)
        if value is not None and refused in (None, value.lower()):
            raise ConfigurationError(
                f"expected no {name} = {value} among the catalog's settings: ebbtide opens files "
                "by keys, roles or vended credentials, and leaves encryption to the bucket; "
                "remove it"
            )


@lru_cache(maxsize=64)
def file_system(settings: tuple[tuple[str, str], ...], bucket: str) -> pyarrow.fs.S3FileSystem:
    """Return a bucket's file system; what no setting tells comes from the environment."""
    properties = dict(settings)
    arguments: dict[str, Any] = {
        name: value
        for name, of in _ARGUMENTS.items()
        if (value := _first(properties, of)) is not None
    }
    for name, of in _MILLISECONDS.items():
        if (value := _first(properties, of)) is not None:
            arguments[name] = _whole(of[0], value) / 1000
    attempts = 1 + _whole(
        "s3.retry.num-retries", properties.get("s3.retry.num-retries", str(_RETRIES))
    )
    arguments["allow_delayed_open"] = True  # a small file is one request
    arguments["retry_strategy"] = pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=attempts)
    endpoint = properties.get("s3.endpoint")
    if endpoint is not None:
        arguments |= _at(endpoint, properties)
    elif "region" not in arguments:
        arguments["region"] = pyarrow.fs.resolve_s3_region(bucket)
    return pyarrow.fs.S3FileSystem(**arguments)


def _at(endpoint: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return where an S3 API other than AWS answers, and whether its host names the bucket."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigurationError(
            f"expected s3.endpoint to be http://HOST:PORT or https://..., found {endpoint}"
        )
    is_path_style = properties.get("s3.path-style-access", "false").lower() == "true"
    return {
        "scheme": url.scheme,
        "endpoint_override": url.netloc + url.path.rstrip("/"),
        # A bucket cannot be a subdomain of an IP address; AWS's own client does the same.
        "force_virtual_addressing": not is_path_style and not _is_ip(url.hostname),
    }


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _first(properties: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((properties[name] for name in names if name in properties), None)


def _whole(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigurationError(f"expected {name} to be a whole number, found {value!r}")
    return int(value)
