"""Words about people in a request: why, for whom, in which case.

A command line is seen by every user of its machine and stands in Airflow's log, so a driver finds
them in its environment.
"""

from __future__ import annotations

# The variable of each Param.
VARIABLES = {
    "requested_by": "EBBTIDE_GIVEN_REQUESTED_BY",
    "reason": "EBBTIDE_GIVEN_REASON",
    "case_id": "EBBTIDE_GIVEN_CASE_ID",
    "owner": "EBBTIDE_GIVEN_OWNER",
}
