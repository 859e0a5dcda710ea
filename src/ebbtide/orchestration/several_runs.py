"""Run a DAG several times in one process, each as `airflow dags test` runs it.

`python -m ebbtide.orchestration.several_runs DAG` takes the conf of a run from each line of its
input. Importing Airflow and building its in-process API take seconds, which the runs share.
"""

from __future__ import annotations

import json
import sys

from airflow.providers_manager import ProvidersManager
from airflow.utils.cli import get_bagged_dag

ENDED = "ebbtide: the run has ended: "  # and Airflow's word for its state


def main() -> None:
    """Run the DAG once for each line of the input."""
    (name,) = sys.argv[1:]
    ProvidersManager().initialize_providers_configuration()  # type: ignore[no-untyped-call]
    dag = get_bagged_dag(bundle_names=None, dag_id=name)
    for line in sys.stdin:
        run = dag.test(run_conf=json.loads(line))
        print(f"{ENDED}{run.state}", flush=True)


if __name__ == "__main__":
    main()
