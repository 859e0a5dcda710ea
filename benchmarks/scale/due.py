"""Say which stages of a night have work on which topics, as Airflow's side decides it.

    python -m benchmarks.scale.due NOW

The last line is JSON: topics by stage.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime

from benchmarks.scale.lake import NIGHT
from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.runs.application import to_ms


def main() -> None:
    now_ms = to_ms(datetime.fromisoformat(sys.argv[1]))
    with open_lake() as lake:
        topics = [lake.topic(name) for name in lake.topic_names()]
        due = {
            stage: [t.name for t in topics if nothing_to_do(stage, t, now_ms, lake) is None]
            for stage in NIGHT
        }
    print(json.dumps(due))


if __name__ == "__main__":
    main()
