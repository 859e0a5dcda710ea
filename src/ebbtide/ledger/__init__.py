"""What ebbtide records about its jobs: plans, undo points, holds and results."""
