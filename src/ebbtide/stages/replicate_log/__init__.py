"""The job replicate_log."""
