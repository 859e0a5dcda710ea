"""Files of an S3 API for pyiceberg, opened by the settings that the jobs open them by."""

from __future__ import annotations

import pyarrow.fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from ebbtide.stores import s3


class SparksFileIO(PyArrowFileIO):
    """pyiceberg's own, which knows few of Iceberg's settings of S3 and some by other names."""

    def _initialize_s3_fs(self, netloc: str | None) -> pyarrow.fs.FileSystem:
        return s3.file_system(s3.settings_of(self.properties), netloc or "")
