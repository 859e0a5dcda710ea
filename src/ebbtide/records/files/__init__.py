"""Segment files and log directories: read and written."""
