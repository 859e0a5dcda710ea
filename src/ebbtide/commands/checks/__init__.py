"""What `ebbtide doctor` checks, by the part of an installation that it looks at."""
