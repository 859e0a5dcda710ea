"""Requests of operators: parsed, and checked against a topic's settings and state."""
