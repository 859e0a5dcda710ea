"""The job clean_log."""
