"""Surfaces that people and tools depend on: what the product has now, and stored files of it.

Each module collects one surface; stored.py compares it. `python -m tests.surfaces --write NAME`
writes the file of a surface that has changed on purpose.
"""
