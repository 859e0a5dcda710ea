"""The secrets of topics: made once, read by their owner only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.ledger import erasure_secrets
from ebbtide.ledger.erasure_secrets import SECRETS, known_secret, secret_of

PEOPLE = "log.people"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(SECRETS, raising=False)
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_topic_has_a_secret_of_its_own_that_stays(home: Path) -> None:
    people, orders = secret_of(PEOPLE), secret_of("log.orders")
    assert people == secret_of(PEOPLE)
    assert people.value != orders.value
    assert people.fingerprint != orders.fingerprint
    assert mode(home / "keys" / "secrets" / "log.people") == 0o600


def test_names_of_topics_are_names_of_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SECRETS, str(tmp_path / "secrets"))
    secret_of("other:raw.../a/b")
    assert [path.name for path in (tmp_path / "secrets").iterdir()] == ["other%3Araw...%2Fa%2Fb"]


def test_a_key_that_another_process_made_meanwhile_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "keys" / "secrets" / "log.people"

    def slow(size: int) -> bytes:
        path.write_bytes(b"t" * size)  # theirs
        return b"o" * size

    monkeypatch.setattr(erasure_secrets.secrets, "token_bytes", slow)
    assert secret_of(PEOPLE).value == b"t" * 32
    assert [each.name for each in path.parent.iterdir()] == ["log.people"]


def test_a_secret_that_was_cut_short(home: Path) -> None:
    secret_of(PEOPLE)
    path = home / "keys" / "secrets" / "log.people"
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match=r"expected at least 32 bytes in .*found 5"):
        secret_of(PEOPLE)


def test_a_folder_of_secrets_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(SECRETS, str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=f"expected a folder .* in {SECRETS}"):
        secret_of(PEOPLE)


def test_no_place_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBBTIDE_HOME")
    with pytest.raises(ConfigurationError, match="found neither"):
        secret_of(PEOPLE)


def test_a_secret_that_does_not_exist_is_not_created(home: Path) -> None:
    assert known_secret(PEOPLE) is None
    assert not (home / "keys").exists()


def test_a_secret_that_cannot_be_read_is_not_taken_for_none(home: Path) -> None:
    path = home / "keys" / "secrets" / "log.people"
    path.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=rf"Is a directory: .*right to read {path}, or"):
        known_secret(PEOPLE)


def test_the_name_of_a_set_of_keys() -> None:
    secret, other = secret_of(PEOPLE), secret_of("log.orders")
    named = secret.name_all([b"a", b"b"])
    assert named == secret.name_all([b"b", b"a", b"b"])
    assert named not in {other.name_all([b"a", b"b"]), secret.name_all([b"ab"]), secret.name(b"a")}
