"""A live topic into tables: ingest_topic beside Iceberg's sink for Kafka Connect."""
