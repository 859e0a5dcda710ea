"""The ways to clean a log, and what a run of one takes."""
