"""The job expire_snapshots."""
