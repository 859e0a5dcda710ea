"""The job abandon_table."""
