"""The job undo_run on tables that others write."""
