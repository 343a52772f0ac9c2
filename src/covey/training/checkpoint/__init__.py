"""Writing checkpoints, and resuming from them exactly."""
