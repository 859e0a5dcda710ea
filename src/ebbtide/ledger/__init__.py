"""Records of jobs: plans, undo points, holds and results."""
