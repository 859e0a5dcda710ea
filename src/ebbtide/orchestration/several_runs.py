"""Run a DAG several times in one process, like `airflow dags test`.

`python -m ebbtide.orchestration.several_runs DAG` reads one run's conf from each line of stdin. The
runs share the seconds that it takes to import Airflow and build its in-process API.
"""

from __future__ import annotations

import json
import sys

from airflow.providers_manager import ProvidersManager
from airflow.utils.cli import get_bagged_dag

ENDED = "ebbtide: the run has ended: "  # then Airflow's name of its state


def main() -> None:
    """Run the DAG once for each line of stdin."""
    (name,) = sys.argv[1:]
    ProvidersManager().initialize_providers_configuration()  # type: ignore[no-untyped-call]
    dag = get_bagged_dag(bundle_names=None, dag_id=name)
    for line in sys.stdin:
        run = dag.test(run_conf=json.loads(line))
        print(f"{ENDED}{run.state}", flush=True)


if __name__ == "__main__":
    main()
