"""The job ingest_segments."""
