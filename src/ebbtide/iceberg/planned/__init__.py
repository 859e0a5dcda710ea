"""Work as it is written down before it starts, so that a killed job's is finished."""
