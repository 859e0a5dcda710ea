"""What it takes to undo a run, and to note for each that it can be."""
