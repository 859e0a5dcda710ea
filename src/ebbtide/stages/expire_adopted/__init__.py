"""The job expire_segments on tables that others write."""
