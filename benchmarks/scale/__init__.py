"""What many partitions, topics, segments and years cost: twice as many at most 2.2 times."""
