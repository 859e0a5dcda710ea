"""`ebbtide-verify` says what holds, what contradicts, and what it could not check."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from ebbtide_verify import fingerprint, hmac_of
from ebbtide_verify.__main__ import CONTRADICTED, HOLDS, UNCHECKED, main
from tests.verify.certificates import ALICE, BOB, SECRET, Office, path_of


@pytest.fixture
def office(tmp_path: Path) -> Office:
    made = Office(tmp_path)
    made.append(BOB)
    return made


def verify(office: Office, certificate: Path, *more: str) -> int:
    return main([str(certificate), "--public-key", str(office.public_key), *more])


def keys_file(home: Path, *keys: bytes) -> tuple[str, ...]:
    path, secret = home / "keys.txt", home / "secret"
    path.write_text("\n".join(key.hex() for key in keys))
    secret.write_bytes(SECRET)
    return "--keys-file", str(path), "--secret-file", str(secret)


def test_a_certificate_that_holds(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = office.certify()
    more = (*keys_file(tmp_path, ALICE), "--chain", str(office.folder))
    assert verify(office, certificate, *more) == HOLDS
    told = capsys.readouterr().out
    for line in (
        "asked for by ann, approved by ben",
        "sought: 1 keys",
        "out of reach: backups: not known",
        "chain: 1 certificates, none missing or changed",
        f"objects: {len(office.objects())} as certified",
        "searched again for 1 of 1 keys: none in an object that the certificate does not list",
        "VALID, as far as it was checked",
    ):
        assert line in told


def test_fewer_keys_than_the_certificate_names_are_told(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, given = office.certify(), keys_file(tmp_path)
    assert verify(office, certificate, *given) == HOLDS
    assert "searched again for 0 of 1 keys" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        verify(office, certificate, *given[2:])
    assert ended.value.code == UNCHECKED
    assert "expected the keys for --secret-file, found none" in capsys.readouterr().err


def test_rows_are_searched_again_without_keys(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    def certified(partition: int) -> Path:
        rows = {"partition": partition, "first": 0, "end": 2, "columns": [["p", "o"]]}
        return office.certify(sought={"keys": [], "secret": "", "rows": rows})

    office.table.overwrite(pa.table({"key": pa.array([b"k"], pa.binary())}))
    with office.table.update_schema() as update:
        update.add_column("p", LongType())
        update.add_column("o", LongType())
    office.table.append(pa.table({"key": pa.array([b"k"], pa.binary()), "p": [0], "o": [1]}))
    assert verify(office, certified(1)) == HOLDS
    assert "searched again for 0 given keys, and the rows: none in" in capsys.readouterr().out
    assert verify(office, certified(0)) == CONTRADICTED
    assert "found rows: row group 0, 1 rows" in capsys.readouterr().out


def test_a_timestamp_that_is_not_there(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    roots = ("--timestamp-roots", str(office.public_key))
    assert verify(office, office.certify(), *roots) == CONTRADICTED
    assert "expected a timestamp, found none in the certificate" in capsys.readouterr().out


def test_objects_that_were_deleted_or_written_since(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = office.certify()
    path_of(office.objects()[-1]).unlink()
    keys = keys_file(tmp_path, ALICE)
    assert verify(office, certificate, *keys) == HOLDS
    assert "1 deleted since" in capsys.readouterr().out
    office.append(ALICE)
    newest = ("--metadata", office.table.metadata_location)
    assert verify(office, certificate, *keys, *newest) == CONTRADICTED
    assert "expected no sought key or row in file:" in capsys.readouterr().out


def test_a_key_that_the_certificate_leaves_out_is_found(office: Office, tmp_path: Path) -> None:
    office.append(ALICE)
    keys = keys_file(tmp_path, ALICE)
    assert verify(office, office.certify(), *keys) == CONTRADICTED
    data = [uri for uri in office.objects() if uri.endswith(".parquet")]
    assert verify(office, office.certify(found=data), *keys) == HOLDS


def test_other_keys_than_those_of_the_certificate(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(office, office.certify(), *keys_file(tmp_path, ALICE, b"carol")) == CONTRADICTED
    assert "expected keys of the certificate, found unknown keys: [2]" in capsys.readouterr().out


def with_one_bit_of(part: str) -> Callable[[dict[str, object]], None]:
    def flip(envelope: dict[str, object]) -> None:
        if part == "signature":
            signatures: list[dict[str, str]] = envelope["signatures"]  # type: ignore[assignment]
            signatures[0]["sig"] = _flipped(signatures[0]["sig"])
        else:
            envelope["payload"] = _flipped(str(envelope["payload"]))

    return flip


def _flipped(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[len(data) // 2] ^= 1
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("part", ["signature", "payload"])
def test_one_bit_of_the_envelope(office: Office, part: str) -> None:
    certificate = office.certify()
    envelope = json.loads(certificate.read_text())
    with_one_bit_of(part)(envelope)
    certificate.write_text(json.dumps(envelope))
    assert verify(office, certificate, "--signature-only") == CONTRADICTED


def test_one_bit_of_any_object(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = office.certify()
    objects = office.objects()
    assert len(objects) >= 4  # metadata, manifest list, manifest, data
    for uri in objects:
        path = path_of(uri)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert verify(office, certificate) == CONTRADICTED
        assert f"expected {uri} with SHA-256" in capsys.readouterr().out
        path.write_bytes(whole)
    assert verify(office, certificate) == HOLDS


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_certificate_that_is_missing_from_the_chain(office: Office, lost: int) -> None:
    made = [office.certify() for _ in range(4)]
    chain = ("--signature-only", "--chain", str(office.folder))
    assert verify(office, made[3], *chain) == HOLDS
    made[lost - 1].unlink()
    assert verify(office, made[3], *chain) == CONTRADICTED


def test_a_certificate_that_was_signed_again_does_not_fit_the_chain(office: Office) -> None:
    made = [office.certify() for _ in range(2)]
    office.number, office.previous = 0, "0" * 64
    office.certify(topic="log.other")  # in place of the first
    assert (
        verify(office, made[1], "--signature-only", "--chain", str(office.folder)) == CONTRADICTED
    )


def test_another_key(office: Office, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    key = Office(other).public_key
    assert main([str(office.certify()), "--public-key", str(key)]) == CONTRADICTED


def test_a_key_that_is_given_twice_is_searched_once(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_file(tmp_path, ALICE, ALICE)
    names = {"keys": [hmac_of(SECRET, ALICE), hmac_of(SECRET, BOB)], "rows": None}
    certificate = office.certify(sought={**names, "secret": fingerprint(SECRET)})
    assert verify(office, certificate, *keys) == HOLDS
    assert "searched again for 1 of 2 keys" in capsys.readouterr().out
    assert verify(office, certificate, *keys[:2]) == HOLDS
    assert "searched again for 1 given keys: none" in capsys.readouterr().out


def test_keys_that_are_whole_numbers_are_searched_again(office: Office, tmp_path: Path) -> None:
    with office.table.update_schema() as update:
        update.add_column("id", LongType())
    office.table.append(pa.table({"key": pa.array([b"k"], pa.binary()), "id": [4711471147]}))
    keys, sought = keys_file(tmp_path, b"4711471147"), {"keys": [], "secret": "", "rows": None}
    certificate = office.certify(sought=sought)
    assert verify(office, certificate, *keys[:2]) == HOLDS
    certificate = office.certify(sought={**sought, "numbers": ["id"]})
    assert verify(office, certificate, *keys[:2]) == CONTRADICTED


def test_a_lake_that_is_not_there_is_not_checked(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = office.certify()
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    assert verify(office, certificate, *keys_file(tmp_path, ALICE)) == UNCHECKED
    assert "NOT CHECKED: ValueError: found none of the" in capsys.readouterr().out
    assert verify(office, certificate, "--signature-only") == HOLDS


@pytest.mark.parametrize("text", ["{}", "[]", "\x1f\x8bx"])
def test_what_is_no_metadata_of_a_table(office: Office, tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="latin-1")
    assert verify(office, office.certify(), "--metadata", str(path)) == UNCHECKED


@pytest.mark.parametrize("sign", "#?")
def test_an_object_that_would_be_mistaken_for_another(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str], sign: str
) -> None:
    uri = next(uri for uri in office.objects() if uri.endswith(".parquet"))
    data = path_of(uri)
    data.with_name(f"a{sign}b").write_bytes(data.read_bytes())
    listed = office.objects

    def objects() -> list[str]:
        return [*listed(), f"{uri.rpartition('/')[0]}/a{sign}b"]

    office.objects = objects  # type: ignore[method-assign]
    assert verify(office, office.certify()) == UNCHECKED
    assert f"expected a URI without # and ?, found {uri.rpartition('/')[0]}" in (
        capsys.readouterr().out
    )


NOT_ENVELOPES = {
    "no JSON": "{",
    "no envelope": "{}",
    "a text": '"abc"',
    "null": "null",
    "payload is no text": '{"payload": 1, "payloadType": "y", "signatures": []}',
    "too deep": "[" * 100_000,
    "no base64": '{"payload": "x", "payloadType": "y", "signatures": []}',
}


@pytest.mark.parametrize("text", NOT_ENVELOPES.values(), ids=NOT_ENVELOPES)
def test_what_is_no_certificate(office: Office, tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert verify(office, path) == CONTRADICTED


def test_what_cannot_be_checked(office: Office, tmp_path: Path) -> None:
    certificate = office.certify()
    assert verify(office, tmp_path / "none.json") == UNCHECKED
    assert main([str(certificate), "--public-key", str(tmp_path / "none.pem")]) == UNCHECKED


def test_an_object_that_cannot_be_read(
    office: Office, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = next(path_of(uri) for uri in office.objects() if uri.endswith(".parquet"))
    data.write_bytes(b"PAR1 and no footer PAR1")
    keys = keys_file(tmp_path, ALICE)
    assert verify(office, office.certify(), *keys) == UNCHECKED
    assert "NOT CHECKED: UnreadableError" in capsys.readouterr().out
    unread = [{"object": data.as_uri(), "why": "no footer"}]
    assert verify(office, office.certify(unread=unread), *keys) == HOLDS
    told = capsys.readouterr().out
    assert "result: incomplete: 1 objects or tables not read; in the rest: not found" in told
    assert f"not read: {data.as_uri()}: no footer" in told
