"""The job ingest_topic."""
