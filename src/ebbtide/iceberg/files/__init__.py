"""Data files, their rows and deletion vectors, read and committed one by one."""
