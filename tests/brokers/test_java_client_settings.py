"""librdkafka's settings for the Java client, and which of them it cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.brokers.live_topic import java_options, quoted
from ebbtide.errors import ConfigurationError

SERVERS = {"bootstrap.servers": "a:9092,b:9092"}
LOGIN = {"sasl.username": "ann", "sasl.password": "word"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
KEY = "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"


def options(**settings: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    converted = java_options("main", {**SERVERS, **named})
    assert all(name.startswith("kafka.") for name in converted)
    return {name.removeprefix("kafka."): value for name, value in converted.items()}


def test_settings_that_only_tune_are_left_out() -> None:
    converted = options(client_id="ebbtide", client_rack="r1", socket_timeout_ms="5", group_id="g")
    assert converted == {**SERVERS, "client.id": "ebbtide", "client.rack": "r1"}


@pytest.mark.parametrize(
    ("name", "mechanism", "module"),
    [
        ("sasl.mechanism", "PLAIN", PLAIN),
        ("sasl.mechanisms", "SCRAM-SHA-256", SCRAM),
        ("sasl.mechanism", "SCRAM-SHA-512", SCRAM),
    ],
)
def test_a_login(name: str, mechanism: str, module: str) -> None:
    converted = java_options(
        "main", {**SERVERS, **LOGIN, name: mechanism, "security.protocol": "sasl_ssl"}
    )
    assert converted == {
        "kafka.bootstrap.servers": "a:9092,b:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="ann" password="word";',
    }


def test_a_login_that_the_protocol_does_not_use_is_none() -> None:
    assert options(security_protocol="ssl", sasl_username="a") == {
        **SERVERS,
        "security.protocol": "SSL",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("word", '"word"'),
        ('a"b', '"a\\"b"'),
        ("a\\", '"a\\\\"'),
        ("a\nb\r", '"a\\nb\\r"'),
        ("$1 {} ; é", '"$1 {} ; é"'),
    ],
)
def test_a_value_is_quoted_for_the_login_configuration(text: str, expected: str) -> None:
    assert quoted(text) == expected


@pytest.mark.parametrize("kind", ["pem", "location"])
def test_certificates_and_keys_go_along_as_text(tmp_path: Path, kind: str) -> None:
    texts = {"ssl.ca": CERTIFICATE, "ssl.certificate": CERTIFICATE, "ssl.key": KEY}
    settings = {"security.protocol": "SSL", "ssl.key.password": "word"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        settings[f"{name}.{kind}"] = text if kind == "pem" else str(tmp_path / name)
    settings["ssl.endpoint.identification.algorithm"] = "none"
    converted = java_options("main", {**SERVERS, **settings})
    assert converted == {
        "kafka.bootstrap.servers": "a:9092,b:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": CERTIFICATE,
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": "word",
    }


SECRET = "hushed"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"security.protocol": "SASL_SSL", **LOGIN}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": SECRET},
            "sasl.password",
        ),
        ({"ssl.ca.location": f"/nowhere/{SECRET}"}, "ssl.ca.location"),
        ({"ssl.certificate.pem": SECRET}, "ssl.key"),
        ({"ssl.key.pem": SECRET}, "ssl.certificate"),
        ({"ssl.certificate.pem": "c", "ssl.key.pem": f"RSA {SECRET}"}, "ssl.key"),
        (
            {"enable.ssl.certificate.verification": "false"},
            "enable.ssl.certificate.verification",
        ),
        ({"ssl.crl.location": SECRET}, "ssl.crl.location"),
        ({"sasl.oauthbearer.config": SECRET}, "sasl.oauthbearer.config"),
    ],
)
def test_what_java_cannot_be_told_is_named_and_its_value_is_not(
    settings: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        java_options("main", {**SERVERS, **settings})
    assert f" for {named} of connection 'main'" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
