"""The job adopt_table."""
