"""The job export_segments."""
