"""Names of topics, and their settings."""
