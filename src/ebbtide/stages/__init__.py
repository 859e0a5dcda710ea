"""Each job on one topic, a folder a job: `plan` shows the changes, `execute` makes them."""
