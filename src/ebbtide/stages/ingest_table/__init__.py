"""The job ingest_table."""
