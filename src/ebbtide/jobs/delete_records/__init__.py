"""The job delete_records."""
