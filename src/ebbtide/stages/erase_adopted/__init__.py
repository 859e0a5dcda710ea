"""The job erase_keys on tables that others write."""
