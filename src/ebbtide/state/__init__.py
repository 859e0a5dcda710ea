"""A topic's state: partitions, row counts, work in flight."""
