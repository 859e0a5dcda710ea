"""What a topic's state holds: partitions, counted rows, work in flight."""
