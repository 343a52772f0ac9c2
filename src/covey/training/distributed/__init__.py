"""Several processes: collectives, error handling, sharded weights."""
