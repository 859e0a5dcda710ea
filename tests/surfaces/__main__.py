"""Compare all surfaces with their stored files, or write the files."""

from __future__ import annotations

import argparse
import os
import sys

import pytest

from tests.surfaces.stored import STORED, WRITTEN


def main() -> int:
    """Run the tests of the surfaces that are named, or of all; return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.surfaces", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files, compare nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as cli; default: all")
    args = parser.parse_args()
    if args.write:
        os.environ[WRITTEN] = " ".join(args.names) or "all"
    chosen = ["-k", " or ".join(args.names)] if args.names else []
    return int(pytest.main([str(STORED.parent), "-q", *chosen]))


if __name__ == "__main__":
    sys.exit(main())
