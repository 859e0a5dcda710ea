"""The lake's tables, read through pyiceberg: Airflow's side reads tables only through here."""
