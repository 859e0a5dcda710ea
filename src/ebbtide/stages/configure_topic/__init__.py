"""The job configure_topic."""
