"""Zip what Spark needs of the package: `package.py TARGET`.

A .zip, because executors cannot import from a wheel in --py-files; without the folders that only
Airflow's side imports. The same sources give the same bytes.
"""

import sys
import uuid
import zipfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"
NOT_FOR_SPARK = {"lake", "local", "orchestration"}
EPOCH = (1980, 1, 1, 0, 0, 0)


def main(target: Path) -> None:
    """Write the zip whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{uuid.uuid4().hex}.new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as package:
        for path in sorted(SOURCES.glob("ebbtide*/**/*.py")):
            name = path.relative_to(SOURCES)
            if name.parts[1] not in NOT_FOR_SPARK:
                entry = zipfile.ZipInfo(str(name), EPOCH)
                package.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    fresh.replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
