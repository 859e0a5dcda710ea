"""Each job on one topic: `plan` shows the changes, `execute` makes them."""
