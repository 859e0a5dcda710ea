"""Topics by name, their settings, and where their log is kept: read, checked, compared."""
