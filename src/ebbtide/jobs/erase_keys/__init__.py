"""The job erase_keys."""
