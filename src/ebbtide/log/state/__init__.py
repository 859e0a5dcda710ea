"""A topic's state as properties of its tables: read, checked, rebuilt."""
