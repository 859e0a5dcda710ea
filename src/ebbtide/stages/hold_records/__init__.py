"""The job hold_records."""
