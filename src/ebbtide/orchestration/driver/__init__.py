"""All that is known and checked before spark-submit starts a job's driver."""
