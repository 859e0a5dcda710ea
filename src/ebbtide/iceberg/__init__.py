"""A topic's Iceberg tables: schema, state, commits, and foreign changes."""
