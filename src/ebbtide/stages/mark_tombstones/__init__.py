"""The job mark_tombstones."""
