"""The pages of runs: a run, the last runs of a DAG, a plan."""
