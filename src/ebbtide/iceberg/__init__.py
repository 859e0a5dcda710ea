"""A topic's Iceberg tables: schema, state, commits, and who else changed them."""
