"""Say which topics one stage of a night has work on, as Airflow's side decides it.

    python -m benchmarks.scale.due STAGE NOW

The last line is JSON: the topics.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime

from ebbtide.lake.reader import open_lake
from ebbtide.moments import to_ms
from ebbtide.orchestration.night import nothing_to_do


def main() -> None:
    stage, now_ms = sys.argv[1], to_ms(datetime.fromisoformat(sys.argv[2]))
    with open_lake() as lake:
        topics = [lake.topic(name) for name in lake.topic_names()]
        due = [topic.name for topic in topics if nothing_to_do(stage, topic, now_ms, lake) is None]
    print(json.dumps({"topics": due}))


if __name__ == "__main__":
    main()
