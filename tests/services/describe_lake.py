"""Print each topic's settings, state and live rows as JSON: run where the lake is configured."""

import json

from ebbtide.lake.reader import open_lake

with open_lake() as lake:
    topics = {
        name: {"properties": lake.topic(name).properties, "live rows": lake.live_rows(name)}
        for name in lake.topic_names()
    }
print(json.dumps(topics))
