"""Where Java is."""

from __future__ import annotations

import os
from pathlib import Path


def java_tool(name: str) -> str:
    """`java` or `javac` of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", name)) if home else name
