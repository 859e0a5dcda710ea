"""Forms of DAGs that ask nobody."""
