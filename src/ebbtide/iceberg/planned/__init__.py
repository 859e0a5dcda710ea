"""Planned work, written to the state before it starts, so that a killed job's can be finished."""
