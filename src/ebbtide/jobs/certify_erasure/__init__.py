"""The job certify_erasure."""
