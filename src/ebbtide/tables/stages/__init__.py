"""Each job on one topic: `plan` says what would go, `execute` does it."""
