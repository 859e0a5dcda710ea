"""The commands of `ebbtide`, one module each: arguments, and an answer as text and as JSON."""
