"""Adopted tables: their rows as a topic's records, and the removal of those records."""
