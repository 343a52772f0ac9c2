"""Running rewards in worker processes with deadlines and limits."""
