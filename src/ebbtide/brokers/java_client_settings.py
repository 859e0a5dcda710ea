"""Convert a connection's librdkafka settings for the Java client in Spark's Kafka source.

Secrets and contents of files are passed as options, in memory; executors need no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ebbtide.errors import ConfigurationError

PREFIX = "kafka."
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = ("bootstrap.servers", "client.id", "client.rack", "client.dns.lookup")
# Security settings: one that cannot be converted is refused.
_MATTERS = ("sasl.", "ssl.", "security.", "https.", "enable.ssl.", "enable.sasl.")
_LOGIN = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_PEM = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def java_options(connection: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as options of Spark's Kafka source.

    ConfigurationError names what the Java client cannot be told, and never repeats its value.
    Settings that only tune librdkafka are left out.
    """
    client = _Client(connection, {name: text for name, text in settings.items() if text != ""})
    for name in _SAME:
        client.take(name, name)
    client.take("security.protocol", "security.protocol", str.upper)
    client.login()
    client.trust()
    client.identify()
    client.check_rest()
    return {PREFIX + name: text for name, text in client.options.items()}


class _Client:
    """Takes settings one by one; what is left is judged at the end."""

    def __init__(self, connection: str, settings: dict[str, str]) -> None:
        self.connection = connection
        self.left = settings
        self.options: dict[str, str] = {}

    def take(self, name: str, option: str, change: Callable[[str], str] = str) -> None:
        """Carry one over, if it is set."""
        if name in self.left:
            self.options[option] = change(self.left.pop(name))

    def login(self) -> None:
        """Set user and password as the one line that Java's login modules read."""
        credentials = {name: self.left.pop(name) for name in _LOGIN if name in self.left}
        if not self.options.get("security.protocol", "").startswith("SASL_"):
            return
        mechanism = (
            credentials.get("sasl.mechanism") or credentials.get("sasl.mechanisms") or "GSSAPI"
        )
        if mechanism not in _MODULES:
            raise self.refused("sasl.mechanism", f"one of {', '.join(_MODULES)}")
        for name in ("sasl.username", "sasl.password"):
            if name not in credentials:
                raise self.refused(name, f"a value, since {mechanism} needs one")
        user, password = (quoted(credentials[name]) for name in ("sasl.username", "sasl.password"))
        module = _MODULES[mechanism]
        self.options["sasl.mechanism"] = mechanism
        self.options["sasl.jaas.config"] = f"{module} required username={user} password={password};"

    def trust(self) -> None:
        """Trust the authorities that sign the brokers' certificates; Java's own if none are set."""
        authorities = self.pem("ssl.ca")
        if authorities is not None:
            self.options["ssl.truststore.type"] = "PEM"
            self.options["ssl.truststore.certificates"] = authorities
        self.take(
            "ssl.endpoint.identification.algorithm",
            "ssl.endpoint.identification.algorithm",
            lambda algorithm: "" if algorithm == "none" else algorithm,
        )
        if self.left.pop("enable.ssl.certificate.verification", "true") != "true":
            raise self.refused("enable.ssl.certificate.verification", "true")

    def identify(self) -> None:
        """Set the client's own certificate and key."""
        chain, key = self.pem("ssl.certificate"), self.pem("ssl.key")
        if chain is not None and key is not None:
            if not any(begin in key for begin in _PEM):
                raise self.refused("ssl.key", "a key in PKCS#8 (openssl pkcs8 -topk8 makes one)")
            self.options["ssl.keystore.type"] = "PEM"
            self.options["ssl.keystore.certificate.chain"] = chain
            self.options["ssl.keystore.key"] = key
            self.take("ssl.key.password", "ssl.key.password")
        elif chain is not None or key is not None:
            missing = "ssl.key" if key is None else "ssl.certificate"
            raise self.refused(missing, "a certificate with its key")

    def pem(self, name: str) -> str | None:
        """Return the text of NAME.pem, or of the file that NAME.location names, read here."""
        text, path = self.left.pop(f"{name}.pem", None), self.left.pop(f"{name}.location", None)
        if text is not None or path is None:
            return text
        try:
            return Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "other bytes"
            raise self.refused(f"{name}.location", f"a PEM file, found: {problem}") from None

    def check_rest(self) -> None:
        """Refuse what would be lost and says how to talk safely."""
        for name in sorted(self.left):
            if name.startswith(_MATTERS):
                raise self.refused(name, "no value, since Java's client cannot be told that")

    def refused(self, name: str, expected: str) -> ConfigurationError:
        """Return the error that names a setting."""
        return ConfigurationError(
            f"expected {expected} for {name} of connection {self.connection!r}, so that Spark's "
            "Kafka source can use it; change that setting of the connection"
        )


def quoted(text: str) -> str:
    """Quote a value of a login configuration, whose reader knows C's escapes."""
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, escape)
    return f'"{text}"'
