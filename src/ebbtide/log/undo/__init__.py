"""Undo of removing runs: what each noted before it removed, and which go back together."""
