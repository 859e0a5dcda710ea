"""How known writers lay a topic out in a table, a profile each."""
