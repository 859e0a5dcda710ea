"""The logs that are cleaned, as Kafka's files and as tables."""
