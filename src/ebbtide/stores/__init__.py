"""Files on disks and in object stores, opened as Iceberg's properties say."""
