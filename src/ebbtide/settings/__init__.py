"""Names of topics, and their settings with what a change of each does."""
