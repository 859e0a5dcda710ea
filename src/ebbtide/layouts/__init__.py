"""Whose tables ebbtide recognises, and where a record's parts stand in them."""
