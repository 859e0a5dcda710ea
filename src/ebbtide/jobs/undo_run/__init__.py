"""The job undo_run."""
