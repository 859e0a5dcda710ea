"""The scripts of the pages are npm's own, at the versions that packages.json pins."""

import base64
import hashlib
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.lake_sandbox import ROOT

FETCH = runpy.run_path(str(ROOT / "conf" / "npm" / "fetch.py"))
PINS = json.loads((ROOT / "conf" / "npm" / "packages.json").read_text())
VENDOR = ROOT / "src" / "ebbtide" / "orchestration" / "pages" / "static" / "vendor"
# SHA-256 of the files that are kept in the repository.
KEPT = {
    "htmx.min.js": "22283ef68cb7545914f0a88a1bdedc7256a703d1d580c1d255217d0a50d31313",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def test_each_script_that_is_kept_is_as_its_package_has_it() -> None:
    assert {file.name: sha256(file) for file in VENDOR.iterdir()} == KEPT


def test_each_kept_file_is_named_by_a_pin_and_has_a_licence() -> None:
    pinned = [list(PINS[name]["files"].values()) for name in ("htmx.org", "uplot")]
    assert sorted(name for files in pinned for name in files) == sorted(KEPT)
    assert all(any(name.endswith("LICENSE") for name in files) for files in pinned)


def test_a_package_of_another_checksum_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    archive.write_bytes(b"something else")
    pin: dict[str, Any] = PINS["uplot"]
    check, error = FETCH["_check"], FETCH["FetchError"]
    with pytest.raises(error, match="expected uplot with sha512-KIMV"):
        check(archive, "uplot", pin["integrity"])
    digest = base64.b64encode(hashlib.sha512(b"something else").digest()).decode()
    check(archive, "uplot", f"sha512-{digest}")


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
