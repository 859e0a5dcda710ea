"""Tables that others write: their rows as a topic's records, and deletions from them."""
