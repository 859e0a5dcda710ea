"""Iceberg tables: schema, state, commits, runs. The only package that writes."""
