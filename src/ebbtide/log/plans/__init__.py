"""Plans of removals that are kept: their offsets, their row, and whether one may be executed."""
