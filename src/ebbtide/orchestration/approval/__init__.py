"""Plans that people approve before a job executes them."""
