from __future__ import annotations

import re

import pytest

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.orchestration.driver_inputs import options_of_params
from ebbtide.settings.upstream import (
    SOURCE,
    WITHOUT_CREDENTIALS,
    check_uri,
    parse_upstream,
    redacted,
)
from ebbtide.specs.params import LINES, TEXT

WITH = [
    ("s3://AKIA:s3cr3t@bucket/log", "s3://***@bucket/log"),
    ("s3://AKIA@bucket/log?region=x", "s3://***@bucket/log?region=x"),
    ("hdfs://user:s3cr3t@host:9000/log", "hdfs://***@host:9000/log"),
    ("s3://b/log?region=x&secret_key=s3cr3t&a=b", "s3://b/log?region=x&secret_key=***&a=b"),
    ("abfs://c/log?client_secret=s3cr3t", "abfs://c/log?client_secret=***"),
]
WITHOUT = [
    "/var/a@b/log",
    "sample/log",
    "s3://bucket/a@b?region=eu&endpoint_override=http://minio:9000",
    "file:///log",
    "ebbtide.event.time=sql:if(a & key = 1, '?token=', '@')",
    "log.a",
]


@pytest.mark.parametrize(("uri", "shown"), WITH)
def test_a_uri_with_credentials_is_refused_without_showing_them(uri: str, shown: str) -> None:
    assert redacted(f"found {uri!r}") == f"found {shown!r}"
    assert not re.match(WITHOUT_CREDENTIALS, uri)
    with pytest.raises(RequestError) as refused:
        check_uri(uri)
    assert str(refused.value).startswith(
        f"expected a URI without credentials, found some in {shown}: it would be stored"
    )
    with pytest.raises(RequestError, match="without credentials"):
        options_of_params({"source": uri}, [TEXT("source", "", "")])
    with pytest.raises(RequestError, match="without credentials"):
        options_of_params({"set": [f"{SOURCE}=segments:{uri}"]}, [LINES("set", "", "")])


@pytest.mark.parametrize("uri", WITHOUT)
def test_any_other_text_is_taken(uri: str) -> None:
    assert check_uri(uri) == uri
    assert re.match(WITHOUT_CREDENTIALS, uri)


def test_what_a_topic_was_given_before_is_not_shown_either() -> None:
    assert str(parse_upstream(SOURCE, "segments:s3://k:s3cr3t@b/x")) == "segments:s3://***@b/x"
    with pytest.raises(ConfigurationError) as refused:
        parse_upstream(SOURCE, "s3://k:s3cr3t@b/x")
    assert "s3cr3t" not in str(refused.value)
