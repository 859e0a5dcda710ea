"""Decode the records of many batches at once."""
