"""ebbtide-verify in an environment of its own, as a stranger installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide_verify.__main__ import CONTRADICTED, HOLDS
from tests.lake_sandbox import ROOT
from tests.verify.certificates import ALICE, BOB, SECRET, Office

UV = Path(sys.prefix, "bin", "uv")
LINES = 600  # which whoever checks a certificate can read


def test_a_stranger_can_read_it() -> None:
    sources = (ROOT / "src" / "ebbtide_verify").glob("*.py")
    assert sum(len(path.read_text().splitlines()) for path in sources) <= LINES


@pytest.mark.long
def test_it_needs_neither_spark_nor_airflow(tmp_path: Path) -> None:
    home, office = tmp_path / "env", Office(tmp_path)
    office.append(BOB)
    certificate, keys, secret = office.certify(), tmp_path / "keys.txt", tmp_path / "secret"
    keys.write_text(ALICE.hex())
    secret.write_bytes(SECRET)
    python, command = home / "bin" / "python", home / "bin" / "ebbtide-verify"
    for arguments in (("venv", home), ("pip", "install", "--python", python, ROOT / "verify")):
        subprocess.run([UV, *arguments, "--quiet"], check=True)
    for module in ("pyspark", "airflow", "ebbtide"):
        imported = subprocess.run([python, "-c", f"import {module}"], capture_output=True)
        assert b"ModuleNotFoundError" in imported.stderr

    asked = (command, certificate, "--public-key", office.public_key)
    more = ("--chain", office.folder, "--keys-file", keys, "--secret-file", secret)
    said = subprocess.run([*asked, *more], capture_output=True, text=True)
    assert said.returncode == HOLDS, said.stdout + said.stderr
    assert "VALID, as far as it was checked" in said.stdout
    text = certificate.read_bytes()
    certificate.write_bytes(text.replace(b'"payload": "e', b'"payload": "f', 1))
    assert subprocess.run(asked, capture_output=True).returncode == CONTRADICTED
