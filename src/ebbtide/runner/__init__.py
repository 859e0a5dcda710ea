"""Runs of jobs on topics: arguments, a thread a topic, plans, failures, `lake.ebbtide.runs`."""
