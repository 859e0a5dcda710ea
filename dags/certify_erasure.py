"""Search every byte of a topic's tables for erased keys, and sign a certificate of what was found.

Searched are the topic's tables, those of its replicas and ebbtide's own: what snapshots, branches
and tags reach, and what no snapshot does. The certificate says what was searched, what was found
and what no search can reach. `ebbtide-verify` checks it without Spark and Airflow.

[Its form](plugin/ebbtide/ebbtide/forms/certify_erasure) suggests the lake's topics.
"""

from ebbtide.orchestration.dags import on_demand
from ebbtide.specs.by_hand import CERTIFY_ERASURE

on_demand(CERTIFY_ERASURE, __doc__, __file__)  # an Airflow DAG
