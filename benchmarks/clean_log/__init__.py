"""What a cleaner round costs: ours, Kafka's own, and the SQL people write by hand."""
