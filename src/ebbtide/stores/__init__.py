"""Files on disks and in object stores, opened by Iceberg's properties."""
