"""Declarations of jobs and forms, and the requests to them."""
