"""The job repair_state."""
