"""Records that holds keep: copied before they are removed."""
