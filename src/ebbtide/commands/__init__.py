"""The commands of `ebbtide`, a module each: its arguments, and its answer as text and as JSON."""
