"""Forms that start DAGs: what each asks for, and how its fields become the DAG's Params."""
