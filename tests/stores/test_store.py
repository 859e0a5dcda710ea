"""Files in a real S3 API, opened as Iceberg's properties say."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from ebbtide.errors import AccessDeniedError, ConfigurationError, SourceError, UnavailableError
from ebbtide.stores.store import FileReader, Store, failing_clearly
from tests.ports import free_port
from tests.services.s3_api import BUCKET, SECRET, S3Api


def put(s3: S3Api, key: str, data: bytes = b"hello") -> str:
    with Store.of(s3.settings()).writing(f"s3://{BUCKET}/{key}") as stream:
        stream.write(data)
    return f"s3://{BUCKET}/{key}"


def methods(s3: S3Api, prefix: str) -> list[str]:
    """The requests for objects whose keys begin so."""
    return [asked.method for asked in s3.requests() if asked.key.startswith(prefix)]


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_location_is_a_key_of_exactly_its_characters(s3: S3Api, scheme: str) -> None:
    key = f"{scheme}/a b/100%/x#y?z=ä/f.bin"
    put(s3, key)
    with Store.of(s3.settings()).reading(f"{scheme}://{BUCKET}/{key}") as handle:
        assert handle.read_at(3, 1) == b"ell"
    info = s3.file_system().get_file_info(f"{BUCKET}/{key}")
    assert info.size == 5


def test_a_small_file_is_one_request_and_leaves_no_marker_of_a_directory(s3: S3Api) -> None:
    put(s3, "one/two/f.bin")
    assert methods(s3, "one/two/f.bin") == ["PUT"]
    assert methods(s3, "one/") == ["PUT"]


def test_a_large_file_goes_in_parts(s3: S3Api) -> None:
    data = bytes(range(256)) * 50_000  # 12.8 MB
    put(s3, "parts/f.bin", data)
    assert methods(s3, "parts/f.bin").count("PUT") > 1
    with Store.of(s3.settings()).reading(f"s3://{BUCKET}/parts/f.bin") as handle:
        assert handle.read() == data


@pytest.mark.parametrize("size", [10, 5000, 20_000])
def test_a_part_of_a_file_is_what_it_was_asked_for(s3: S3Api, size: int) -> None:
    data = random.Random(size).randbytes(size)
    location = put(s3, f"part/{size}.bin", data)
    for position in (0, 4, size - 3):
        assert Store.of(s3.settings()).read_range(location, position, 3) == data[position:][:3]


def test_tasks_take_a_store_along_and_nobody_sees_its_keys(s3: S3Api) -> None:
    store = Store.of(s3.settings())
    put(s3, "taken/f.bin")
    taken = pickle.loads(pickle.dumps(store))
    with taken.reading(f"s3://{BUCKET}/taken/f.bin") as handle:
        assert handle.read() == b"hello"
    assert SECRET not in f"{store!r} {store}"


def test_a_uri_is_decoded_and_a_source_is_read_through_a_window(s3: S3Api) -> None:
    put(s3, "log/a b/f.log", b"0123456789")
    with FileReader(f"s3://{BUCKET}/log/a%20b/f.log", Store.of(s3.settings())) as reader:
        assert reader.size_bytes == 10
        assert bytes(reader.read(2, 3)) == b"234"


def test_what_is_not_there_is_not_found(s3: S3Api) -> None:
    store = Store.of(s3.settings())
    for location in (f"s3://{BUCKET}/nothing", "s3://no-such-bucket/nothing"):
        with pytest.raises(FileNotFoundError), store.reading(location):
            pass


def test_a_store_that_does_not_answer_may_later() -> None:
    settings = {
        "s3.endpoint": f"http://127.0.0.1:{free_port()}",
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
        "s3.retry.num-retries": "0",
        "client.region": "r",
    }
    message = f"^s3://{BUCKET}/f: expected an answer of the store, found: .*NETWORK_CONNECTION"
    with (
        pytest.raises(UnavailableError, match=message),
        Store.of(settings).reading(f"s3://{BUCKET}/f"),
    ):
        pass


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject operation", AccessDeniedError),
        ("AWS Error UNKNOWN (HTTP status 403): InvalidAccessKeyId", AccessDeniedError),
        (
            "AWS Error UNKNOWN (HTTP status 403) during GetObject operation: Unable to parse "
            "ExceptionName: NotSignedUp Message: You did not sign up",
            AccessDeniedError,
        ),
        (
            "AWS Error UNKNOWN (HTTP status 403) during GetObject operation: Unable to parse "
            "ExceptionName: RequestTimeTooSkewed Message: late",
            UnavailableError,
        ),
        (
            "AWS Error UNKNOWN (HTTP status 400) during ListObjectsV2 operation: Unable to parse "
            "ExceptionName: InvalidBucketName Message: no",
            ConfigurationError,
        ),
        ("AWS Error SLOW_DOWN during GetObject operation", UnavailableError),
        ("AWS Error UNKNOWN (HTTP status 400): ExpiredToken", UnavailableError),
        ("AWS Error NO_SUCH_KEY during GetObject operation", FileNotFoundError),
    ],
)
def test_what_a_store_says_decides_whether_a_retry_can_help(
    message: str, error: type[Exception]
) -> None:
    with pytest.raises(error), failing_clearly("s3://b/f"):
        raise OSError(message)


def test_an_error_of_a_disk_stays_what_it_is() -> None:
    with pytest.raises(OSError, match="No space left"), failing_clearly("/f"):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s3.remote-signing-enabled", "true"),
        ("s3.sse.type", "kms"),
        ("s3.sse.type", "dsse-kms"),
        ("s3.sse.type", "custom"),
        ("s3.client-factory-impl", "com.example.Factory"),
        ("client.factory", "com.example.Factory"),
        ("client.credentials-provider", "com.example.Provider"),
        ("client.assume-role.arn", "arn:aws:iam::1:role/reader"),
        ("client.assume-role.tags.team", "lake"),
        ("s3.write.tags.team", "lake"),
        ("s3.write.table-tag-enabled", "true"),
        ("s3.write.namespace-tag-enabled", "true"),
        ("s3.write.storage-class", "GLACIER"),
        ("s3.access-points.archive", "arn:aws:s3:::accesspoint"),
        ("s3.access-grants.enabled", "true"),
        ("s3.acceleration-enabled", "true"),
        ("s3.dualstack-enabled", "true"),
        ("http-client.proxy-use-environment-variable-values", "true"),
        ("s3.endpoint", "s3.example.com"),
        ("s3.retry.num-retries", "many"),
        ("http-client.apache.socket-timeout-ms", "-1"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*{value}"):
        Store.of({"client.region": "r", name: value}).resolve(f"s3://{BUCKET}/f")


def arguments_of(**settings: str) -> dict[str, Any]:
    """What pyarrow was told by these settings and a region."""
    file_system, _ = Store.of({"client.region": "r", **settings}).resolve(f"s3://{BUCKET}/f")
    arguments: dict[str, Any] = file_system.__reduce__()[1][0]
    return arguments


def test_a_role_is_taken_in_its_region_and_no_keys_are_used() -> None:
    role = {
        "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": "arn:aws:iam::1:role/reader",
        "client.assume-role.external-id": "ebbtide",
        "client.assume-role.region": "eu-west-3",
    }
    arguments = arguments_of(**role, **{"s3.access-key-id": "k", "s3.secret-access-key": "s"})
    assert arguments["role_arn"] == "arn:aws:iam::1:role/reader"
    assert (arguments["external_id"], arguments["region"]) == ("ebbtide", "eu-west-3")
    assert not arguments["access_key"]


def test_settings_that_are_off_are_no_hindrance() -> None:
    off = {"s3.sse.type": "s3", "s3.dualstack-enabled": "False"}
    assert arguments_of(**off)["region"] == "r"


def test_a_proxy_is_used() -> None:
    arguments = arguments_of(**{"http-client.proxy-endpoint": "http://proxy:8020"})
    assert (arguments["proxy_options"]["host"], arguments["proxy_options"]["port"]) == (
        "proxy",
        8020,
    )


def test_a_bucket_stands_before_the_host_unless_settings_or_an_address_forbid_it() -> None:
    def forced(endpoint: str, **more: str) -> Any:
        return arguments_of(**{"s3.endpoint": endpoint}, **more)["force_virtual_addressing"]

    assert forced("https://s3.example.com")
    assert not forced("https://s3.example.com", **{"s3.path-style-access": "true"})
    assert not forced("http://127.0.0.1:9000")


def test_a_uri_without_a_file_system_is_named() -> None:
    with pytest.raises(SourceError, match=r"tape://logs: expected a path or a URI"):
        Store().resolve("tape://logs")
