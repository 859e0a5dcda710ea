"""An S3 API for pyarrow, from the settings of Iceberg's S3FileIO.

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

# Iceberg's default.
_RETRIES = 5
_FACTORY, _ROLE = "client.factory", "client.assume-role.arn"
_TAKES_A_ROLE = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
# Properties for each of pyarrow's arguments; the first that is set is used.
_KEYS = {
    "access_key": ("s3.access-key-id",),
    "secret_key": ("s3.secret-access-key",),
    "session_token": ("s3.session-token",),
    "region": ("client.region", "s3.region"),
    "proxy_options": ("http-client.proxy-endpoint",),
}
# The machine's own credentials assume the role. The role's region is also the files'.
_OF_A_ROLE = {
    "role_arn": (_ROLE,),
    "session_name": ("client.assume-role.session-name",),
    "external_id": ("client.assume-role.external-id",),
    "region": ("client.assume-role.region",),
    "proxy_options": ("http-client.proxy-endpoint",),
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
_OFF = frozenset({"false"})
# Settings with the values that ebbtide can follow; with another, it would open or write files
# differently from Iceberg.
_FOLLOWED: dict[str, frozenset[str]] = {
    _FACTORY: frozenset(
        {_TAKES_A_ROLE, "org.apache.iceberg.aws.AwsClientFactories$DefaultAwsClientFactory"}
    ),
    "s3.client-factory-impl": frozenset(),
    "client.credentials-provider": frozenset(
        {"software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"}
    ),
    "s3.sse.type": frozenset({"none", "s3"}),
    "s3.write.storage-class": frozenset({"STANDARD"}),
    "s3.remote-signing-enabled": _OFF,
    "s3.access-grants.enabled": _OFF,
    "s3.acceleration-enabled": _OFF,
    "s3.dualstack-enabled": _OFF,
    "s3.write.table-tag-enabled": _OFF,
    "s3.write.namespace-tag-enabled": _OFF,
    "http-client.proxy-use-system-property-values": _OFF,
    "http-client.proxy-use-environment-variable-values": _OFF,
}
_REFUSED_PREFIXES = ("s3.write.tags.", "s3.access-points.", "client.assume-role.tags.")


def settings_of(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings of S3. Raise ConfigurationError for one that ebbtide cannot follow."""
    settings = {name: properties[name] for name in properties if name.startswith(PREFIXES)}
    for name, value in settings.items():
        if not _is_followed(name, value):
            raise ConfigurationError(
                f"expected catalog settings that ebbtide can follow, found {name} = {value}. "
                "Remove it from spark-defaults.conf. If it is not there, the catalog's server "
                "sends it: turn it off there (docs/stores.md)"
            )
    if _ROLE in settings and settings.get(_FACTORY) != _TAKES_A_ROLE:
        raise ConfigurationError(
            f"expected {_FACTORY} = {_TAKES_A_ROLE} with {_ROLE} = {settings[_ROLE]}, found "
            f"{settings.get(_FACTORY, 'none')}: Iceberg assumes a role only with that factory. Set "
            f"it, or remove {_ROLE}"
        )
    return tuple(sorted(settings.items()))


def _is_followed(name: str, value: str) -> bool:
    if name.startswith(_REFUSED_PREFIXES):
        return False
    followed = _FOLLOWED.get(name)
    return followed is None or value in followed or value.lower() in followed


@lru_cache(maxsize=64)
def file_system(settings: tuple[tuple[str, str], ...], bucket: str) -> pyarrow.fs.S3FileSystem:
    """Return the file system of a bucket; the environment supplies what no setting does."""
    given = dict(settings)
    names = _OF_A_ROLE if given.get(_FACTORY) == _TAKES_A_ROLE else _KEYS
    arguments: dict[str, Any] = {
        name: value
        for name, setting_names in names.items()
        if (value := _first(given, setting_names)) is not None
    }
    for name, setting_names in _MILLISECONDS.items():
        if (value := _first(given, setting_names)) is not None:
            arguments[name] = _whole(setting_names[0], value) / 1000
    attempts = 1 + _whole("s3.retry.num-retries", given.get("s3.retry.num-retries", str(_RETRIES)))
    arguments["allow_delayed_open"] = True  # a small file is one request
    arguments["retry_strategy"] = pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=attempts)
    if "s3.acl" in given:
        arguments["default_metadata"] = {"ACL": given["s3.acl"]}
    endpoint = given.get("s3.endpoint")
    if endpoint is not None:
        arguments |= _at(endpoint, given)
    elif "region" not in arguments or _is_true(given, "s3.cross-region-access-enabled"):
        arguments["region"] = pyarrow.fs.resolve_s3_region(bucket)
    return pyarrow.fs.S3FileSystem(**arguments)


def _at(endpoint: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Return pyarrow's arguments for an S3 API other than AWS."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"expected s3.endpoint to be http://HOST:PORT or https://..., found {endpoint}"
        )
    is_path_style = _is_true(given, "s3.path-style-access")
    return {
        "scheme": parts.scheme,
        "endpoint_override": parts.netloc + parts.path.rstrip("/"),
        # An IP address cannot have the bucket in front; AWS's own client does the same.
        "force_virtual_addressing": not is_path_style and not _is_ip(parts.hostname),
    }


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_true(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "false").lower() == "true"


def _first(given: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((given[name] for name in names if name in given), None)


def _whole(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigurationError(f"expected {name} to be a whole number, found {value!r}")
    return int(value)
