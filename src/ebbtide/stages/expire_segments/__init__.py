"""The job expire_segments."""
