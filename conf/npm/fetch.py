"""Fetch files of npm packages at the versions and checksums of packages.json.

Usage: fetch.py TARGET_DIR PACKAGE... The pages' own (`make vendor`) are kept in the repository with
their licences, so that nothing is fetched to run them.
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parent / "packages.json"


class FetchError(Exception):
    """One line that says what is missing and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch each package; 1 with one line on stderr where that is not possible."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE")
    args = parser.parse_args(argv)
    pins = json.loads(PINS.read_text())
    try:
        for name in args.packages:
            fetch(name, pins[name], args.target)
    except FetchError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0


def fetch(name: str, pin: dict[str, Any], target: Path) -> None:
    """Put a package's files into the target under the names that its pin gives them."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        archive = _pack(name, pin["version"], Path(scratch))
        _check(archive, name, pin["integrity"])
        with tarfile.open(archive) as tar:
            for path, renamed in pin["files"].items():
                file = tar.extractfile(f"package/{path}")
                assert file is not None, path
                (target / renamed).write_bytes(file.read())


def _pack(name: str, version: str, scratch: Path) -> Path:
    command = ["npm", "pack", "--silent", f"{name}@{version}"]
    try:
        subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise FetchError("npm is missing: install Node.js (apt-get install npm)") from None
    except subprocess.CalledProcessError as error:
        raise FetchError(f"npm could not fetch {name}@{version}: {error.stderr[-300:]}") from None
    (archive,) = scratch.glob("*.tgz")
    return archive


def _check(archive: Path, name: str, integrity: str) -> None:
    algorithm, _, expected = integrity.partition("-")
    digest = base64.b64encode(hashlib.new(algorithm, archive.read_bytes()).digest()).decode()
    if digest != expected:
        raise FetchError(f"expected {name} with {integrity}, npm gave {algorithm}-{digest}")


if __name__ == "__main__":
    sys.exit(main())
