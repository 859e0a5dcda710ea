"""A home of Spark's own for what is measured: settings of the nightly jobs, another lake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EBBTIDE_HOME = ROOT / ".ebbtide"
SHARED = ("jars", "classes.jsa", "classes.jsa.stamp")
BENCH = EBBTIDE_HOME / "bench"


def environment(home: Path) -> dict[str, str]:
    """What makes Spark find the lake of this home."""
    return {
        **os.environ,
        "EBBTIDE_HOME": str(home),
        "SPARK_CONF_DIR": str(home / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(ROOT / "conf" / "python"),
    }


def make_home(home: Path) -> None:
    """The rendered settings, the jars that they name, and the archive of their classes."""
    home.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        if not (home / name).is_symlink():
            (home / name).symlink_to(EBBTIDE_HOME / name)
    for template in ("spark-defaults.conf", "log4j2.properties"):
        command = [sys.executable, "conf/render.py", f"conf/{template}", str(home / "conf")]
        subprocess.run(command, cwd=ROOT, env=environment(home), check=True)
    shutil.copy(ROOT / "conf" / "spark-env.sh", home / "conf")
