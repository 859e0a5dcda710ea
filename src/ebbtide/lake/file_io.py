"""S3 files for pyiceberg, opened with the same settings as in the jobs."""

from __future__ import annotations

import pyarrow.fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from ebbtide.stores import s3


class SparksFileIO(PyArrowFileIO):
    """pyiceberg's FileIO with Iceberg's S3 settings: its own knows few, some by other names."""

    def _initialize_s3_fs(self, netloc: str | None) -> pyarrow.fs.FileSystem:
        return s3.file_system(s3.settings_of(self.properties), netloc or "")
