"""Layouts of adopted and copied tables: how they are recognised, and their columns for a record."""
