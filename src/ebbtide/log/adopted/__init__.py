"""Topics in tables that others wrote: their layouts, delete horizons and segments."""
