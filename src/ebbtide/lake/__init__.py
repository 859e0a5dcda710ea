"""The lake read through pyiceberg: all that Airflow's side may see of tables."""
