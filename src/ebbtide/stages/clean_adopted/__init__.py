"""The job clean_log on tables that others write."""
